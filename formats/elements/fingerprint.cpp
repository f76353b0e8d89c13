#include "ebb/formats/elements/fingerprint.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "ebb/formats/core/check.h"

namespace ebb::formats {
namespace {

constexpr std::size_t kBlock = 256;  // words that share one multiplier
constexpr std::size_t kFew = 16;     // words that are not worth a vector loop

// SplitMix64's finisher: every bit of the input reaches every bit of the result.
constexpr std::uint64_t mixed(std::uint64_t number) {
  number += 0x9e3779b97f4a7c15u;
  number = (number ^ (number >> 30)) * 0xbf58476d1ce4e5b9u;
  number = (number ^ (number >> 27)) * 0x94d049bb133111ebu;
  return number ^ (number >> 31);
}

// Odd, so that no key loses a bit of a word. In halves, as vector units multiply.
struct Keys {
  constexpr Keys() {
    for (std::size_t i = 0; i < kBlock; ++i) {
      const std::uint64_t key = mixed(i) | 1;
      low[i] = static_cast<std::uint32_t>(key);
      high[i] = static_cast<std::uint32_t>(key >> 32);
      sums[i + 1] = sums[i] + key;
    }
  }
  std::array<std::uint32_t, kBlock> low{};
  std::array<std::uint32_t, kBlock> high{};
  std::array<std::uint64_t, kBlock + 1> sums{};  // of the keys before each
};
constexpr Keys kKeys;

template <typename Bits>
std::uint32_t word(const std::byte* data, std::size_t index) {
  Bits bits;
  std::memcpy(&bits, data + index * sizeof(Bits), sizeof(Bits));
  // What only changes high bits, as a sign, changes low ones too: products lose the highest.
  if constexpr (sizeof(Bits) == 4) bits ^= bits >> 16;
  return bits;
}

// Of `count` words, the first of which is word `first` of its block; before its multiplier.
template <typename Bits>
[[gnu::always_inline]] inline std::uint64_t sum_of(const std::byte* data, std::size_t first,
                                                   std::size_t count) {
  std::uint64_t low = 0;
  std::uint64_t high = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint32_t bits = word<Bits>(data, i);
    low += std::uint64_t{bits} * kKeys.low[first + i];
    high += std::uint64_t{bits} * kKeys.high[first + i];
  }
  return low + (high << 32);
}

EBB_CLONES std::uint64_t sum_of_1(const std::byte* data, std::size_t first, std::size_t count) {
  return sum_of<std::uint8_t>(data, first, count);
}
EBB_CLONES std::uint64_t sum_of_2(const std::byte* data, std::size_t first, std::size_t count) {
  return sum_of<std::uint16_t>(data, first, count);
}
EBB_CLONES std::uint64_t sum_of_4(const std::byte* data, std::size_t first, std::size_t count) {
  return sum_of<std::uint32_t>(data, first, count);
}

template <typename Bits, std::uint64_t (*kMany)(const std::byte*, std::size_t, std::size_t)>
std::uint64_t sum_of_blocks(std::uint64_t first, ByteView data) {
  std::uint64_t sum = 0;
  for (std::size_t left = data.size() / sizeof(Bits); left > 0;) {
    const std::size_t in_block = first % kBlock;
    const std::size_t count = std::min(left, kBlock - in_block);
    const std::uint64_t part = count < kFew ? sum_of<Bits>(data.data(), in_block, count)
                                            : kMany(data.data(), in_block, count);
    const std::uint64_t ones = kKeys.sums[in_block + count] - kKeys.sums[in_block];
    sum += (part + ones) * (mixed(~(first / kBlock)) | 1);
    data = data.subspan(count * sizeof(Bits));
    first += count;
    left -= count;
  }
  return sum;
}

}  // namespace

std::uint64_t fingerprint(std::uint64_t first, ByteView data, std::uint32_t elem_bytes) {
  EBB_CHECK(elem_bytes != 0 && data.size() % elem_bytes == 0);
  switch (elem_bytes) {
    case 1:
      return sum_of_blocks<std::uint8_t, sum_of_1>(first, data);
    case 2:
      return sum_of_blocks<std::uint16_t, sum_of_2>(first, data);
    default:
      EBB_CHECK(elem_bytes == 4 || elem_bytes == 8 || elem_bytes == 16);
      return sum_of_blocks<std::uint32_t, sum_of_4>(first * (elem_bytes / 4), data);
  }
}

std::uint64_t fingerprint(const Shape& shape, const Box& box, ByteView data,
                          std::uint32_t elem_bytes) {
  EBB_CHECK(data.size() == volume(box.extent) * elem_bytes);
  std::uint64_t sum = 0;
  for_each_run(shape, box, [&](FlatRange run) {
    const std::size_t bytes = run.count * elem_bytes;
    sum += fingerprint(run.first, data.first(bytes), elem_bytes);
    data = data.subspan(bytes);
  });
  return sum;
}

std::uint64_t fingerprint(const Shape& shape, const Box& box, std::uint64_t first, ByteView data,
                          std::uint32_t elem_bytes) {
  std::uint64_t sum = 0;
  for (Box& part : boxes_of(box.extent, {first, data.size() / elem_bytes})) {
    for (std::size_t d = 0; d < part.offset.size(); ++d) part.offset[d] += box.offset[d];
    const auto of_part = data.first(volume(part.extent) * elem_bytes);
    sum += fingerprint(shape, part, of_part, elem_bytes);
    data = data.subspan(of_part.size());
  }
  return sum;
}

std::uint64_t fingerprint(const Shape& shape, const Box& region, ConstBoxView frame,
                          std::uint32_t elem_bytes) {
  EBB_CHECK(frame.data.size() == volume(frame.box.extent) * elem_bytes);
  std::uint64_t sum = 0;
  for_each_run(shape, region, [&](FlatRange run) {
    // The run's first element, seen from the corner of the frame.
    std::uint64_t rest = run.first;
    std::uint64_t at = 0;
    std::uint64_t stride = 1;
    for (std::size_t d = shape.size(); d-- > 0;) {
      at += (rest % shape[d] - frame.box.offset[d]) * stride;
      stride *= frame.box.extent[d];
      rest /= shape[d];
    }
    sum += fingerprint(run.first, frame.data.subspan(at * elem_bytes, run.count * elem_bytes),
                       elem_bytes);
  });
  return sum;
}

}  // namespace ebb::formats
