#include "ebb/libswap/space/frames.h"

#include <algorithm>
#include <limits>

#include "ebb/formats/core/check.h"

namespace ebb::libswap {

void Frames::take(std::uint64_t first, std::uint64_t count, Holder holder) {
  for (std::uint64_t frame = first; frame < first + count; ++frame) {
    EBB_CHECK(holders_[frame] == kNobody);
    holders_[frame] = holder;
  }
  free_ -= count;
}

void Frames::give_back(std::uint64_t first, std::uint64_t count) {
  for (std::uint64_t frame = first; frame < first + count; ++frame) {
    EBB_CHECK(holders_[frame] != kNobody);
    holders_[frame] = kNobody;
  }
  free_ += count;
}

// A window slides over the frames; the soonest wish in it is the front of a monotonic queue.
std::optional<std::uint64_t> Frames::cheapest(std::uint64_t count, const Sparing& sparing) const {
  struct Wish {
    std::uint64_t frame = 0, when = 0;
  };
  std::vector<Wish> soonest;  // ascending in both, from `front` on
  std::size_t front = 0;
  std::uint64_t begin = 0;  // of the window: no frame from here on that cannot go
  std::optional<std::uint64_t> best;
  std::uint64_t best_when = 0;
  Holder known = kNobody;
  std::optional<std::uint64_t> when = std::numeric_limits<std::uint64_t>::max();  // of `known`
  for (std::uint64_t frame = 0; frame < holders_.size(); ++frame) {
    if (holders_[frame] != known) {
      known = holders_[frame];
      when = known == kNobody ? std::numeric_limits<std::uint64_t>::max() : sparing(known);
    }
    if (!when) {
      begin = frame + 1;
      soonest.clear();
      front = 0;
      continue;
    }
    while (soonest.size() > front && soonest.back().when >= *when) soonest.pop_back();
    soonest.push_back({frame, *when});
    if (frame - begin + 1 > count) ++begin;
    if (soonest[front].frame < begin) ++front;
    if (frame - begin + 1 < count) continue;
    if (best && soonest[front].when <= best_when) continue;
    best = begin;
    best_when = soonest[front].when;
    if (best_when == std::numeric_limits<std::uint64_t>::max()) break;
  }
  return best;
}

std::vector<Frames::Holder> Frames::holders(std::uint64_t first, std::uint64_t count) const {
  std::vector<Holder> found;
  for (std::uint64_t frame = first; frame < first + count; ++frame)
    if (holders_[frame] != kNobody && (found.empty() || found.back() != holders_[frame]))
      found.push_back(holders_[frame]);
  return found;
}

}  // namespace ebb::libswap
