#include "ebb/libmuon/plan/step_order.h"

#include <algorithm>
#include <utility>

namespace ebb::libmuon {

StepOrder::StepOrder(std::span<const Item> items, std::uint64_t most_room, const TileElems& tiles)
    : momentum_(items.size()), masters_(items.size()) {
  std::uint64_t largest = 0;
  for (const Item& item : items) largest = std::max(largest, item.update_elems());
  const bool two = items.size() > 1 && 2 * largest <= most_room;
  room_ = two ? 2 * largest : largest;
  const auto place = [&](std::vector<std::uint64_t>& places, std::size_t item) {
    places[item] = std::exchange(length_, length_ + items[item].elems);
  };
  bool owed = false;  // masters of the item before
  for (std::size_t i = 0; i < items.size(); ++i) {
    const Item& item = items[i];
    updates_.push_back(i % 2 == 0 ? 0 : room_ - item.update_elems());
    const bool beside =
        owed && !item.streaming && items[i - 1].update_elems() + item.update_elems() <= room_;
    if (owed && !beside) place(masters_, i - 1);
    if (item.streaming) {
      const Leg& last = streamed_.emplace(i, legs_of(item.streaming, item.elems, tiles, length_))
                            .first->second.back();
      length_ = last.place + last.elems.count;
    } else {
      place(momentum_, i);
      if (beside) place(masters_, i - 1);
    }
    owed = !item.streaming;
  }
  if (owed) place(masters_, items.size() - 1);
}

StepOrder::StepOrder(std::span<const Item> items, const Turns& turns) {
  std::vector<std::uint64_t> used(turns.count);
  for (std::size_t i = 0; i < items.size(); ++i)
    masters_.push_back(
        std::exchange(used[turns.momentum[i]], used[turns.momentum[i]] + items[i].elems));
  const std::uint64_t turn = std::max<std::uint64_t>(1, std::ranges::max(used));
  for (std::size_t i = 0; i < items.size(); ++i) {
    momentum_.push_back(turns.momentum[i] * turn + masters_[i]);
    masters_[i] = momentum_[i] + turns.between * turn;
  }
  length_ = turns.count * turn;
}

std::vector<Leg> StepOrder::legs(const Item& item, std::size_t number) const {
  if (const auto found = streamed_.find(number); found != streamed_.end()) return found->second;
  return {{Action::prepare, 1, {0, item.elems}, momentum_[number]},
          {Action::finish, 1, {0, item.elems}, masters_[number]}};
}

std::uint64_t StepOrder::place(std::size_t item, Action action, std::uint32_t pass,
                               std::uint64_t element) const {
  const auto found = streamed_.find(item);
  if (found == streamed_.end())
    return (action == Action::prepare ? momentum_ : masters_)[item] + element;
  for (const Leg& leg : found->second)
    if (leg.action == action && leg.pass == pass && element >= leg.elems.first &&
        element < leg.elems.first + leg.elems.count)
      return leg.place + element - leg.elems.first;
  EBB_CHECK(false);
}

}  // namespace ebb::libmuon
