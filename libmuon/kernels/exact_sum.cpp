// The exact sum of squares (docs/numerics.md). A square of an fp32 number is an integer of at most
// 48 bits times a power of two not below 2^-298.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "ebb/libmuon/kernels/kernels.h"

namespace ebb::libmuon {
namespace {

constexpr std::size_t kBlock = 1024;
constexpr int kWindowBits = 45;
constexpr int kUnit = -298;               // exponent of a limb's lowest bit
constexpr std::size_t kShort = 64;        // below: the plain path
constexpr std::size_t kMostWindows = 15;  // from 2^256 down to 2^-298, in whole passes
constexpr std::uint32_t kMagnitude = 0x7fffffffu;
constexpr std::uint32_t kInfinity = 0x7f800000u;

using Limbs = std::array<std::int64_t, 20>;
__extension__ using Wide = __int128;

// limbs += value * 2^(shift + kUnit). REQUIRES: |value| < 2^63, shift < 17 * 32.
void add_shifted(Limbs& limbs, std::int64_t value, int shift) {
  const auto limb = static_cast<std::size_t>(shift / 32);
  const Wide wide = static_cast<Wide>(value) * (Wide{1} << (shift % 32));
  limbs[limb] += static_cast<std::uint32_t>(wide);
  limbs[limb + 1] += static_cast<std::uint32_t>(wide >> 32);
  limbs[limb + 2] += static_cast<std::int64_t>(wide >> 64);
}

// The plain path: one number at a time. Answers the bits of the largest magnitude; what is not
// finite adds nothing.
std::uint32_t add_plain(Limbs& limbs, std::span<const float> values) {
  std::uint32_t largest = 0;
  for (const float value : values) {
    const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(value) & kMagnitude;
    largest = std::max(largest, magnitude);
    if (magnitude >= kInfinity) continue;
    const std::uint32_t exponent = magnitude >> 23;
    const std::uint64_t fraction = magnitude & 0x7fffffu;
    const std::uint64_t significand = exponent == 0 ? fraction : fraction | 0x800000u;
    add_shifted(limbs, static_cast<std::int64_t>(significand * significand),
                2 * static_cast<int>(std::max(exponent, 1u)) - 2);
  }
  return largest;
}

struct Magnitudes {                         // bits of fp32 numbers
  std::uint32_t largest = 0, smallest = 0;  // the latter of those that are not zero
};

EBB_CLONES void find_magnitudes(const float* values, Magnitudes& found) {
  std::uint32_t largest = 0, smallest = kMagnitude;
  for (std::size_t i = 0; i < kBlock; ++i) {
    const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(values[i]) & kMagnitude;
    largest = std::max(largest, magnitude);
    smallest = std::min(smallest, magnitude - 1);  // a zero's is the largest number
  }
  found = {largest, smallest + 1};
}

// As wide as AVX2's registers: of wider ones a compiler for AVX2 keeps sums in memory.
typedef double Doubles __attribute__((vector_size(32)));
typedef std::int64_t Bits __attribute__((vector_size(32)));
constexpr std::size_t kWide = sizeof(Doubles) / sizeof(double);
constexpr std::size_t kSideBySide = 2 * kWide;
static_assert((kBlock / kSideBySide << kWindowBits) <= 1ull << 52, "a sum of a window is exact");
using Sums = std::array<double, kSideBySide>;

// Code that is compiled for several processors takes no vectors as arguments: hence references.
[[gnu::always_inline]] inline void square(const float* values, Doubles& squares) {
  squares = Doubles{values[0], values[1], values[2], values[3]};
  squares *= squares;
}

// Takes from numbers what they have above the bit that adding and taking away `splitter` rounds to,
// and adds it to `sum`.
[[gnu::always_inline]] inline void take(Doubles& numbers, double splitter, Doubles& sum) {
  const Doubles taken = (numbers + splitter) - splitter;
  numbers -= taken;
  sum += taken;
}

// What a block has in its two windows, each in units of the window's lowest bit.
struct Cut {
  std::int64_t upper = 0, lower = 0;
};
// An upper sum begins at `upper`, 2^52 units of its window, and stays below twice that; to a lower
// one, within 2^51 units, `lower` is added at the end, 1.5 * 2^52 of them.
struct Bases {
  double upper = 0, lower = 0;
};

// Units are the bits that a sum has more than its base.
[[gnu::always_inline]] inline std::int64_t units(const Doubles& sums, double base) {
  std::int64_t all = 0;
  for (std::size_t i = 0; i < kWide; ++i)
    all += std::bit_cast<std::int64_t>(sums[i]) - std::bit_cast<std::int64_t>(base);
  return all;
}

// Adding a square rounds the upper sum to its window's lowest bit; the lower one has what is left.
[[gnu::always_inline]] inline void add_square(const float* values, Doubles& upper, Doubles& lower) {
  Doubles squares;
  square(values, squares);
  const Doubles sum = upper + squares;
  lower += squares - (sum - upper);
  upper = sum;
}

// Squares of a block that end in their second window.
EBB_CLONES void cut_in_two(const float* values, const Bases& bases, Cut& cut) {
  Doubles even = {}, lower_even = {}, lower_odd = {};
  even += bases.upper;
  Doubles odd = even;
  for (std::size_t i = 0; i < kBlock; i += kSideBySide) {
    __builtin_prefetch(values + i + kBlock);
    add_square(values + i, even, lower_even);
    add_square(values + i + kWide, odd, lower_odd);
  }
  lower_even += bases.lower;
  lower_odd += bases.lower;
  cut.upper = units(even, bases.upper) + units(odd, bases.upper);
  cut.lower = units(lower_even, bases.lower) + units(lower_odd, bases.lower);
}

// Squares of a block in the windows above splitters[skipped..skipped + kAtOnce), less those above
// the splitters before them; answers zero if nothing is left below.
constexpr std::size_t kAtOnce = 3;
EBB_CLONES std::uint64_t cut(const float* values, const double* splitters, std::size_t skipped,
                             std::array<Sums, kAtOnce>& windows) {
  static_assert(kAtOnce == 3);
  const double first = splitters[skipped], second = splitters[skipped + 1],
               third = splitters[skipped + 2];
  std::uint64_t rest = 0;
  for (std::size_t half = 0; half < 2; ++half) {
    Doubles firsts = {}, seconds = {}, thirds = {}, above = {}, squares;
    Bits rests = {};
    for (std::size_t i = half * kWide; i < kBlock; i += kSideBySide) {
      square(values + i, squares);
      for (std::size_t w = 0; w < skipped; ++w) take(squares, splitters[w], above);
      take(squares, first, firsts);
      take(squares, second, seconds);
      take(squares, third, thirds);
      rests |= reinterpret_cast<Bits>(squares);
    }
    std::memcpy(windows[0].data() + half * kWide, &firsts, sizeof firsts);
    std::memcpy(windows[1].data() + half * kWide, &seconds, sizeof seconds);
    std::memcpy(windows[2].data() + half * kWide, &thirds, sizeof thirds);
    for (std::size_t i = 0; i < kWide; ++i) rest |= static_cast<std::uint64_t>(rests[i]);
  }
  return rest;
}

// Exact, as std::ldexp() is, but in line. REQUIRES: a normal number.
double power_of_two(int exponent) {
  return std::bit_cast<double>(static_cast<std::uint64_t>(1023 + exponent) << 52);
}

// limbs += a window's sums, whose lowest bit is 2^low.
void add_window(Limbs& limbs, const Sums& sums, int low) {
  const double scale = power_of_two(-low);
  std::int64_t all = 0;
  for (const double sum : sums) all += static_cast<std::int64_t>(sum * scale);
  add_shifted(limbs, all, low - kUnit);
}

// The fast path: a block's squares in windows from the top down. Answers the bits of the largest
// magnitude; adds nothing if that is not finite.
std::uint32_t add_block(Limbs& limbs, const float* values) {
  Magnitudes found;
  find_magnitudes(values, found);
  if (found.largest >= kInfinity || found.largest == 0) return found.largest;
  const auto exponent_of = [](std::uint32_t magnitude) {
    return static_cast<int>(std::max(magnitude >> 23, 1u));
  };
  // Every square is below 2^top and a multiple of 2^bottom.
  const int top = 2 * (exponent_of(found.largest) - 126);
  const int bottom = 2 * (exponent_of(found.smallest) - 150);
  const auto low_of = [top](std::size_t window) {
    return std::max(top - kWindowBits * static_cast<int>(window + 1), kUnit);
  };
  const auto splitter_of = [&](std::size_t window) {
    return 1.5 * power_of_two(low_of(window) + 52);
  };
  if (bottom >= low_of(1)) {
    Cut cut;
    cut_in_two(values, {power_of_two(low_of(0) + 52), splitter_of(1)}, cut);
    add_shifted(limbs, cut.upper, low_of(0) - kUnit);
    add_shifted(limbs, cut.lower, low_of(1) - kUnit);
    return found.largest;
  }
  std::array<Sums, kAtOnce> windows;
  std::array<double, kMostWindows> splitters;
  for (std::size_t skipped = 0;; skipped += kAtOnce) {
    for (std::size_t w = skipped; w < skipped + kAtOnce; ++w) splitters[w] = splitter_of(w);
    const std::uint64_t rest = cut(values, splitters.data(), skipped, windows);
    for (std::size_t w = 0; w < kAtOnce; ++w) add_window(limbs, windows[w], low_of(skipped + w));
    if (rest == 0) return found.largest;
  }
}

}  // namespace

void ExactSum::carry() {
  for (std::size_t i = 0; i + 1 < limbs.size(); ++i) {
    limbs[i + 1] += limbs[i] >> 32;
    limbs[i] &= 0xffffffff;
  }
}

float ExactSum::add(std::span<const float> values) {
  std::uint32_t largest = 0;
  while (!values.empty()) {
    const std::size_t count = std::min(values.size(), kBlock);
    const std::span<const float> part = values.first(count);
    values = values.subspan(count);
    std::uint32_t here = kInfinity;
    if (count >= kShort) {
      float padded[kBlock];
      const float* block = part.data();
      if (count < kBlock) {
        std::fill(std::copy(part.begin(), part.end(), padded), padded + kBlock, 0.0f);
        block = padded;
      }
      here = add_block(limbs, block);
    }
    // A block with an infinity keeps its finite numbers: that costs nobody but a bad step.
    if (here >= kInfinity) here = add_plain(limbs, part);
    largest = std::max(largest, here);
  }
  carry();  // a limb holds 2^31 of what a block or a number adds
  finite &= largest < kInfinity;
  return std::bit_cast<float>(std::min(largest, kInfinity));
}

void ExactSum::merge(const ExactSum& other) {
  for (std::size_t i = 0; i < limbs.size(); ++i) limbs[i] += other.limbs[i];
  finite &= other.finite;
  carry();
}

double ExactSum::value() const {
  if (!finite) return std::numeric_limits<double>::quiet_NaN();
  ExactSum sum = *this;
  sum.carry();
  std::size_t top = sum.limbs.size() - 1;
  while (top > 0 && sum.limbs[top] == 0) --top;
  // The three highest limbs hold at least 65 bits from the first one on (the last limb may hold
  // more than 32); whatever is below only matters as "not zero".
  Wide high = sum.limbs[top];
  const std::size_t taken = std::min<std::size_t>(top, 2);
  for (std::size_t i = 1; i <= taken; ++i) high = (high << 32) | sum.limbs[top - i];
  EBB_CHECK(high >= 0);
  int exponent = kUnit + 32 * static_cast<int>(top - taken);
  bool sticky = false;
  for (std::size_t i = 0; i + taken < top; ++i) sticky |= sum.limbs[i] != 0;
  while (high >> 63 != 0) {
    sticky |= (high & 1) != 0;
    high >>= 1;
    ++exponent;
  }
  // 63 bits and a sticky one below the rounding position: the conversion rounds to nearest even.
  const auto bits = static_cast<std::int64_t>(high) | (sticky ? 1 : 0);
  return std::ldexp(static_cast<double>(bits), exponent);
}

}  // namespace ebb::libmuon
