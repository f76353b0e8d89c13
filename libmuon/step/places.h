// Places: where ranges of parameters lie in one piece of memory.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "ebb/libmuon/plan/chunks.h"
#include "ebb/libswap/device/device.h"

namespace ebb::libmuon {

struct Place {
  std::uint32_t param = 0;
  FlatRange range;
  std::uint64_t first = 0;  // in the memory, in bytes
  std::pair<std::uint32_t, std::uint64_t> key() const { return {param, range.first}; }
};
using Places = std::vector<Place>;  // ascending by key

// That of what holds the range; null if none does.
const Place* place_of(const Places& places, const Transit& range);
// The range's elements, which are of that type. REQUIRES: it is inside of one that has a place.
libswap::Buffer elements_at(const Places& places, const Transit& range, DType dtype,
                            const libswap::DeviceMemory& memory);

}  // namespace ebb::libmuon
