#include "ebb/libmuon/step/places.h"

#include <algorithm>

namespace ebb::libmuon {

const Place* place_of(const Places& places, const Transit& range) {
  const auto behind =
      std::ranges::upper_bound(places, std::pair(range.param, range.range.first), {}, &Place::key);
  if (behind == places.begin()) return nullptr;
  const Place& place = *std::prev(behind);
  const bool holds =
      place.param == range.param && formats::overlap(place.range, range.range) == range.range;
  return holds ? &place : nullptr;
}

libswap::Buffer elements_at(const Places& places, const Transit& range, DType dtype,
                            const libswap::DeviceMemory& memory) {
  const Place* const place = place_of(places, range);
  EBB_CHECK(place != nullptr);
  const std::uint64_t each = bytes_of(dtype);
  const std::uint64_t skipped = (range.range.first - place->range.first) * each;
  return memory.buffer().sub(place->first + skipped, range.range.count * each).as(dtype);
}

}  // namespace ebb::libmuon
