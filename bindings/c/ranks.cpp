#include <cstdlib>

#include "bindings/c/arguments.h"
#include "bindings/c/guarded.h"
#include "bindings/c/objects.h"

namespace ebb::c {
namespace {

using libmuon::Communicator;
using libmuon::SocketListener;

Result<> open_listener(const char* host, ebb_listener** place, char** address) {
  EBB_TRY(check_place(place, "ebb_listener_open: listener"));
  EBB_TRY(check_place(address, "ebb_listener_open: address"));
  EBB_TRY_ASSIGN(auto listener, SocketListener::open({.host = host == nullptr ? "" : host}));
  const std::string text = listener.address();
  auto object = std::make_shared<ListenerObject>(ListenerObject{std::move(listener)});
  EBB_TRY(answer_text(address, text, "ebb_listener_open: address"));
  return listeners().add(std::move(object), place);
}

Result<> keep(std::unique_ptr<Communicator> ranks, ebb_ranks** place) {
  return ranks_handles().add(std::make_shared<RanksObject>(std::move(ranks)), place);
}

Result<> connect(ebb_listener* handle, uint32_t rank, uint32_t world, const char* const* addresses,
                 uint32_t limit_ms, ebb_ranks** place) {
  EBB_TRY_ASSIGN(const auto object, listeners().remove(handle));
  EBB_TRY(check_place(place, "ebb_ranks_connect: ranks"));
  EBB_TRY_ASSIGN(const auto given, array_of(addresses, world, "ebb_ranks_connect: addresses"));
  std::vector<std::string> texts;
  for (const char* const address : given) {
    EBB_TRY_ASSIGN(const std::string_view text, text_of(address, "ebb_ranks_connect: an address"));
    texts.emplace_back(text);
  }
  EBB_TRY_ASSIGN(auto ranks, make_socket_ranks(std::move(object->listener), Rank{rank}, texts,
                                               std::chrono::milliseconds(limit_ms)));
  return keep(std::move(ranks), place);
}

Result<> agree(ebb_ranks* handle, int64_t mine, int64_t* smallest) {
  EBB_TRY_ASSIGN(const auto object, ranks_handles().find(handle));
  EBB_TRY(check_place(smallest, "ebb_ranks_agree: smallest"));
  EBB_TRY_ASSIGN(const OnlyCall call, collective_call(*object));
  const Passage passage(*object);
  EBB_TRY_ASSIGN(*smallest, object->ranks->agree(mine));
  return {};
}

}  // namespace

Result<OnlyCall> OnlyCall::enter(std::atomic<bool>& in_call, std::string_view what) {
  if (!in_call.exchange(true)) return OnlyCall(in_call);
  return Error{Code::state, compose("another thread is inside of a call of the same {}", what),
               "make these calls from one thread, or one after the other"};
}

Handles<ListenerObject>& listeners() {
  static auto* const all = new Handles<ListenerObject>("listener");  // never goes: threads may last
  return *all;
}

Handles<RanksObject>& ranks_handles() {
  static auto* const all = new Handles<RanksObject>("set of ranks");
  return *all;
}

Result<> answer_text(char** place, std::string_view text, std::string_view what) {
  EBB_TRY(check_place(place, what));
  auto* const copy = static_cast<char*>(std::malloc(text.size() + 1));
  if (copy == nullptr) return Error{Code::no_memory, compose("{}: no memory is left", what)};
  text.copy(copy, text.size());
  copy[text.size()] = '\0';
  *place = copy;
  return {};
}

}  // namespace ebb::c

using ebb::c::guarded;

ebb_status ebb_listener_open(const char* host, ebb_listener** listener, char** address) noexcept {
  return guarded([&] { return ebb::c::open_listener(host, listener, address); });
}

ebb_status ebb_listener_close(ebb_listener* listener) noexcept {
  return guarded([&]() -> ebb::Result<> {
    EBB_TRY(ebb::c::listeners().remove(listener));
    return {};
  });
}

ebb_status ebb_ranks_connect(ebb_listener* listener, uint32_t rank, uint32_t world,
                             const char* const* addresses, uint32_t limit_ms,
                             ebb_ranks** ranks) noexcept {
  return guarded(
      [&] { return ebb::c::connect(listener, rank, world, addresses, limit_ms, ranks); });
}

ebb_status ebb_ranks_alone(ebb_ranks** ranks) noexcept {
  return guarded([&]() -> ebb::Result<> {
    EBB_TRY(ebb::c::check_place(ranks, "ebb_ranks_alone: ranks"));
    return ebb::c::keep(std::move(ebb::libmuon::make_thread_ranks(1).front()), ranks);
  });
}

ebb_status ebb_ranks_agree(ebb_ranks* ranks, int64_t mine, int64_t* smallest) noexcept {
  return guarded([&] { return ebb::c::agree(ranks, mine, smallest); });
}

ebb_status ebb_ranks_abort(ebb_ranks* ranks) noexcept {
  return guarded([&]() -> ebb::Result<> {
    EBB_TRY_ASSIGN(const auto object, ebb::c::ranks_handles().find(ranks));
    object->ranks->abort();
    return {};
  });
}

ebb_status ebb_ranks_close(ebb_ranks* ranks) noexcept {
  return guarded([&]() -> ebb::Result<> {
    EBB_TRY(ebb::c::ranks_handles().remove(ranks));
    return {};
  });
}
