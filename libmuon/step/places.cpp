#include "ebb/libmuon/step/places.h"

#include <algorithm>

namespace ebb::libmuon {

libswap::Buffer elements_at(const Places& places, const Transit& range, DType dtype,
                            const libswap::DeviceMemory& memory) {
  const auto behind =
      std::ranges::upper_bound(places, std::pair(range.param, range.range.first), {}, &Place::key);
  EBB_CHECK(behind != places.begin());
  const auto place = std::prev(behind);
  EBB_CHECK(place->param == range.param &&
            formats::overlap(place->range, range.range) == range.range);
  const std::uint64_t each = bytes_of(dtype);
  const std::uint64_t skipped = (range.range.first - place->range.first) * each;
  return memory.buffer().sub(place->first + skipped, range.range.count * each).as(dtype);
}

}  // namespace ebb::libmuon
