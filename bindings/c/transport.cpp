// Ranks over messages that the caller carries.
#include "bindings/c/arguments.h"
#include "bindings/c/guarded.h"
#include "bindings/c/objects.h"
#include "ebb/libmuon/comm/message_ranks.h"

namespace ebb::c {
namespace {

constexpr std::uint64_t kFirstRoom = 256;  // bytes: what most messages but those of rounds have

class CallersTransport : public libmuon::Transport {
 public:
  explicit CallersTransport(const ebb_transport& given) : given_(given) {}
  ~CallersTransport() override {
    if (given_.close != nullptr) given_.close(given_.self);
  }
  CallersTransport(const CallersTransport&) = delete;
  CallersTransport& operator=(const CallersTransport&) = delete;

  Rank rank() const override { return Rank{given_.rank}; }
  std::uint32_t world() const override { return given_.world; }
  std::uint32_t tags() const override { return given_.tags; }

  Result<> send(Rank to, std::uint32_t tag, ByteVector message) override {
    return answered("send", given_.send(given_.self, formats::index_of(to), tag, message.data(),
                                        message.size()));
  }
  Result<std::vector<Rank>> unsent(std::uint32_t tag) override {
    std::vector<std::uint64_t> counts(given_.world);
    EBB_TRY(answered("unsent", given_.unsent(given_.self, tag, counts.data())));
    std::vector<Rank> ranks;
    for (std::uint32_t rank = 0; rank < given_.world; ++rank)
      ranks.insert(ranks.end(), counts[rank], Rank{rank});
    return ranks;
  }
  Result<std::optional<Arrived>> receive(std::uint32_t tag) override {
    for (std::uint64_t room = kFirstRoom;;) {
      Arrived arrived;
      arrived.message.resize(room);
      std::uint32_t from = given_.world;
      std::uint64_t bytes = room;
      EBB_TRY(answered("receive",
                       given_.receive(given_.self, tag, &from, arrived.message.data(), &bytes)));
      if (from >= given_.world) return std::optional<Arrived>();
      if (bytes > libmuon::kMostRoundBytes)
        return Error{Code::limit, compose("the caller's transport: a message of {} bytes", bytes)};
      if (bytes > room) {
        room = bytes;
        continue;
      }
      arrived.from = Rank{from};
      arrived.message.resize(bytes);
      return std::optional(std::move(arrived));
    }
  }

 private:
  static Result<> answered(std::string_view call, ebb_status status) {
    if (status == EBB_DONE) return {};
    return Error{Code::peer, compose("the caller's transport: {} answered {}", call, status)};
  }

  const ebb_transport given_;
};

Result<> connect(const ebb_transport* given, uint32_t limit_ms, ebb_ranks** place) {
  EBB_TRY_ASSIGN(const ebb_transport transport, sized(given, "the transport"));
  if (transport.send == nullptr || transport.unsent == nullptr || transport.receive == nullptr)
    return Error{Code::usage, "the transport lacks send, unsent or receive"};
  auto carried = std::make_unique<CallersTransport>(transport);
  EBB_TRY(check_place(place, "ebb_ranks_transport: ranks"));
  if (transport.rank >= transport.world)
    return Error{Code::usage,
                 compose("the transport's rank is {} of {}", transport.rank, transport.world)};
  EBB_TRY_ASSIGN(auto ranks, libmuon::make_message_ranks(std::move(carried),
                                                         std::chrono::milliseconds(limit_ms)));
  return ranks_handles().add(std::make_shared<RanksObject>(std::move(ranks)), place);
}

}  // namespace
}  // namespace ebb::c

ebb_status ebb_ranks_transport(const ebb_transport* transport, uint32_t limit_ms,
                               ebb_ranks** ranks) noexcept {
  return ebb::c::guarded([&] { return ebb::c::connect(transport, limit_ms, ranks); });
}
