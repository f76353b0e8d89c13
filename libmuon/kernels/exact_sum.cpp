// The exact sum of squares (docs/numerics.md). A square of an fp32 number is an integer of at most
// 48 bits times a power of two not below 2^-298.
#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "ebb/libmuon/kernels/kernels.h"

namespace ebb::libmuon {
namespace {

constexpr std::size_t kBlock = 1024;  // 2^10 windows of 42 bits sum up exactly in a double
constexpr int kWindowBits = 42;
constexpr int kUnit = -298;         // exponent of a limb's lowest bit
constexpr std::size_t kShort = 64;  // below: the plain path
constexpr std::size_t kPart = kBlock / 8;
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

// The plain path: one number at a time. True if all are finite.
bool add_plain(Limbs& limbs, std::span<const float> values) {
  bool finite = true;
  for (const float value : values) {
    const std::uint32_t magnitude = std::bit_cast<std::uint32_t>(value) & kMagnitude;
    if (magnitude >= kInfinity) {
      finite = false;
      continue;
    }
    const std::uint32_t exponent = magnitude >> 23;
    const std::uint64_t fraction = magnitude & 0x7fffffu;
    const std::uint64_t significand = exponent == 0 ? fraction : fraction | 0x800000u;
    add_shifted(limbs, static_cast<std::int64_t>(significand * significand),
                2 * static_cast<int>(std::max(exponent, 1u)) - 2);
  }
  return finite;
}

EBB_CLONES std::uint32_t largest_magnitude(const float* values) {
  std::uint32_t largest = 0;
  for (std::size_t i = 0; i < kBlock; ++i)
    largest = std::max(largest, std::bit_cast<std::uint32_t>(values[i]) & kMagnitude);
  return largest;
}

struct Window {
  double sum;          // of what was cut off, exact
  std::uint64_t rest;  // zero if nothing is left of any number
};

// Cuts each number at the multiples of a power of two that adding and taking away `splitter` rounds
// to, and leaves the rest in `numbers`. The sums are exact, so their order is free: parts side by
// side.
template <typename Numbers>
[[gnu::always_inline]] inline void cut(double splitter, const Numbers& at, double* numbers,
                                       double* __restrict sums, std::uint64_t* __restrict rests) {
  for (std::size_t i = 0; i < kPart; ++i) {
    double sum = 0;
    std::uint64_t rest = 0;
    for (std::size_t part = 0; part < kBlock; part += kPart) {
      const double number = at(i + part);
      const double high = (number + splitter) - splitter;
      const double left = number - high;
      numbers[i + part] = left;
      sum += high;
      rest |= std::bit_cast<std::uint64_t>(left);
    }
    sums[i] = sum;
    rests[i] = rest;
  }
}

EBB_CLONES void cut_squares(double splitter, const float* __restrict values,
                            double* __restrict numbers, double* __restrict sums,
                            std::uint64_t* __restrict rests) {
  const auto square = [values](std::size_t i) __attribute__((always_inline)) {
    return static_cast<double>(values[i]) * static_cast<double>(values[i]);
  };
  cut(splitter, square, numbers, sums, rests);
}

EBB_CLONES void cut_again(double splitter, double* __restrict numbers, double* __restrict sums,
                          std::uint64_t* __restrict rests) {
  const auto number = [numbers](std::size_t i)
                          __attribute__((always_inline)) { return numbers[i]; };
  cut(splitter, number, numbers, sums, rests);
}

EBB_CLONES Window fold(double* __restrict sums, std::uint64_t* __restrict rests) {
  for (std::size_t half = kPart / 2; half >= 8; half /= 2)
    for (std::size_t i = 0; i < half; ++i) {
      sums[i] += sums[i + half];
      rests[i] |= rests[i + half];
    }
  Window window{.sum = 0, .rest = 0};
  for (std::size_t i = 0; i < 8; ++i) {
    window.sum += sums[i];
    window.rest |= rests[i];
  }
  return window;
}

// Exact, as std::ldexp() is, but in line. REQUIRES: a normal number.
double power_of_two(int exponent) {
  return std::bit_cast<double>(static_cast<std::uint64_t>(1023 + exponent) << 52);
}

// The fast path: a block's squares in windows from the top down; false if a number is not finite.
bool add_block(Limbs& limbs, const float* values) {
  const std::uint32_t largest = largest_magnitude(values);
  if (largest >= kInfinity) return false;
  if (largest == 0) return true;
  alignas(64) double numbers[kBlock];
  alignas(64) double sums[kPart];
  alignas(64) std::uint64_t rests[kPart];
  // Every square is below 2^top.
  const int top = 2 * (static_cast<int>(std::max(largest >> 23, 1u)) - 126);
  int low = std::max(top - kWindowBits, kUnit);
  for (bool first = true;; first = false) {
    const double splitter = 1.5 * power_of_two(low + 52);
    if (first)
      cut_squares(splitter, values, numbers, sums, rests);
    else
      cut_again(splitter, numbers, sums, rests);
    const Window window = fold(sums, rests);
    add_shifted(limbs, static_cast<std::int64_t>(window.sum * power_of_two(-low)), low - kUnit);
    if (window.rest == 0) return true;
    low = std::max(low - kWindowBits, kUnit);
  }
}

}  // namespace

void ExactSum::carry() {
  for (std::size_t i = 0; i + 1 < limbs.size(); ++i) {
    limbs[i + 1] += limbs[i] >> 32;
    limbs[i] &= 0xffffffff;
  }
}

void ExactSum::add(std::span<const float> values) {
  while (!values.empty()) {
    const std::size_t count = std::min(values.size(), kBlock);
    const std::span<const float> part = values.first(count);
    values = values.subspan(count);
    if (count < kShort) {
      finite &= add_plain(limbs, part);
    } else {
      float padded[kBlock];
      const float* block = part.data();
      if (count < kBlock) {
        std::fill(std::copy(part.begin(), part.end(), padded), padded + kBlock, 0.0f);
        block = padded;
      }
      // A block with an infinity keeps its finite numbers: that costs nobody but a bad step.
      if (!add_block(limbs, block)) finite &= add_plain(limbs, part);
    }
  }
  carry();  // a limb holds 2^31 of what a block or a number adds
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
