#include "ebb/formats/core/int8_blocks.h"

#include <cmath>

#include "ebb/formats/core/check.h"
#include "ebb/formats/core/units.h"

namespace ebb::formats {

void from_int8_blocks(std::span<const std::int8_t> codes, std::span<const float> scales,
                      std::uint64_t block, std::uint64_t first, std::span<float> into) {
  EBB_CHECK(into.size() == codes.size() && first < block &&
            scales.size() == div_ceil(first + codes.size(), block));
  for (std::size_t i = 0; i < codes.size(); ++i)
    into[i] = int8_value(codes[i], scales[(first + i) / block]);
}

void to_int8_blocks(std::span<const float> values, std::uint64_t block,
                    std::span<std::int8_t> codes, std::span<float> scales) {
  EBB_CHECK(codes.size() == values.size() && scales.size() == div_ceil(values.size(), block));
  for (std::size_t b = 0; b < scales.size(); ++b) {
    const std::size_t first = b * block;
    const auto some = values.subspan(first, std::min<std::size_t>(block, values.size() - first));
    float largest = 0;
    for (const float value : some) largest = std::max(largest, std::abs(value));
    scales[b] = int8_scale(largest);
    const float inverse = int8_inverse(scales[b]);
    for (std::size_t i = 0; i < some.size(); ++i) codes[first + i] = int8_code(some[i], inverse);
  }
}

}  // namespace ebb::formats
