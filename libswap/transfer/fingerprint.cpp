#include "libswap/transfer/fingerprint.h"

#include <array>
#include <cstring>

#include "formats/core/check.h"

namespace libswap {
namespace {

__extension__ using Wide = unsigned __int128;

// Both halves of a 64 x 64 product, folded: every bit of either input reaches every bit of the
// result. The constants are odd and dense: digits of the golden ratio, sqrt(3) and sqrt(5).
std::uint64_t mixed(std::uint64_t index, std::uint64_t bits) {
  const std::uint64_t a = bits ^ 0x9e3779b97f4a7c15u;
  const std::uint64_t b = index * 0xbb67ae8584caa73bu + 0x3c6ef372fe94f82bu;
  const Wide product = static_cast<Wide>(a) * b;
  return static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
}

template <typename Bits>
std::uint64_t element(const std::byte* data, std::size_t index) {
  Bits bits;
  std::memcpy(&bits, data + index * sizeof(Bits), sizeof(Bits));
  return bits;
}

template <typename Bits>
std::uint64_t sum_of(std::uint64_t first, formats::ByteView data) {
  // Independent sums: one alone is as slow as a multiplication's latency.
  constexpr std::size_t kLanes = 4;
  std::array<std::uint64_t, kLanes> sums{};
  const std::size_t count = data.size() / sizeof(Bits);
  std::size_t i = 0;
  for (; i + kLanes <= count; i += kLanes)
    for (std::size_t lane = 0; lane < kLanes; ++lane)
      sums[lane] += mixed(first + i + lane, element<Bits>(data.data(), i + lane));
  for (; i < count; ++i) sums[0] += mixed(first + i, element<Bits>(data.data(), i));
  return sums[0] + sums[1] + sums[2] + sums[3];
}

}  // namespace

std::uint64_t fingerprint(std::uint64_t first, formats::ByteView data, std::uint32_t elem_bytes) {
  CHECK(elem_bytes != 0 && data.size() % elem_bytes == 0);
  switch (elem_bytes) {
    case 1:
      return sum_of<std::uint8_t>(first, data);
    case 2:
      return sum_of<std::uint16_t>(first, data);
    case 4:
      return sum_of<std::uint32_t>(first, data);
    case 8:
      return sum_of<std::uint64_t>(first, data);
    default:
      CHECK(elem_bytes == 16);  // as twice as many elements of 8 bytes
      return sum_of<std::uint64_t>(first * 2, data);
  }
}

std::uint64_t fingerprint(const formats::Shape& shape, const formats::Box& box,
                          formats::ByteView data, std::uint32_t elem_bytes) {
  CHECK(data.size() == formats::volume(box.extent) * elem_bytes);
  std::uint64_t sum = 0;
  formats::for_each_run(shape, box, [&](formats::FlatRange run) {
    const std::size_t bytes = run.count * elem_bytes;
    sum += fingerprint(run.first, data.first(bytes), elem_bytes);
    data = data.subspan(bytes);
  });
  return sum;
}

std::uint64_t fingerprint(const formats::Shape& shape, const formats::Box& box, std::uint64_t first,
                          formats::ByteView data, std::uint32_t elem_bytes) {
  std::uint64_t sum = 0;
  for (formats::Box& part : formats::boxes_of(box.extent, {first, data.size() / elem_bytes})) {
    for (std::size_t d = 0; d < part.offset.size(); ++d) part.offset[d] += box.offset[d];
    const auto of_part = data.first(formats::volume(part.extent) * elem_bytes);
    sum += fingerprint(shape, part, of_part, elem_bytes);
    data = data.subspan(of_part.size());
  }
  return sum;
}

std::uint64_t fingerprint(const formats::Shape& shape, const formats::Box& region,
                          formats::ConstBoxView frame, std::uint32_t elem_bytes) {
  CHECK(frame.data.size() == formats::volume(frame.box.extent) * elem_bytes);
  std::uint64_t sum = 0;
  formats::for_each_run(shape, region, [&](formats::FlatRange run) {
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

}  // namespace libswap
