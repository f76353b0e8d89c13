#include "ebb/libmuon/comm/transport.h"

#include <algorithm>

namespace ebb::libmuon {
namespace {

// Messages of a round on their way.
constexpr std::size_t kInFlight = 4;

}  // namespace

// First to the next rank, last to the one before: each has one that sends to it.
Result<bool> Transport::move(std::uint32_t tag, Lanes& out, Lanes& in) {
  EBB_TRY_ASSIGN(const std::vector<Rank> on_the_way, unsent(tag));
  std::size_t room = kInFlight - std::min(kInFlight, on_the_way.size());
  bool moved = false;
  for (std::uint32_t distance = 1; distance < world(); ++distance) {
    const std::uint32_t to = (index_of(rank()) + distance) % world();
    for (; room > 0 && out[to].left() > 0; --room) {
      EBB_TRY(send(Rank{to}, tag, out[to].take(kMostMessage)));
      moved = true;
    }
  }
  for (;; moved = true) {
    EBB_TRY_ASSIGN(const auto arrived, receive(tag));
    if (!arrived) return moved;
    in[index_of(arrived->from)].put(arrived->message);
  }
}

std::optional<std::string> Transport::gone(Rank /*peer*/) { return std::nullopt; }

}  // namespace ebb::libmuon
