// The host's kernel table: what a trainer keeps in bf16 counts as the same numbers in fp32.
#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "ebb/libmuon/kernels/kernels.h"
#include "ebb/libmuon/kernels/table.h"
#include "ebb/libmuon/spec/presets.h"
#include "tests/libmuon/kernels/numbers.h"

namespace ebb::libmuon::host_kernels_tests {
namespace {

using libswap::Buffer;
using libswap::buffer_of;
using testing::gaussian;
using testing::same_bits;

float widened(std::uint16_t bits) { return std::bit_cast<float>(std::uint32_t{bits} << 16); }

Buffer half(std::vector<std::uint16_t>& bits) {
  return buffer_of(std::as_writable_bytes(std::span(bits))).as(DType::bf16);
}

TEST(HostKernels, EveryNumberOfBf16IsWidenedExactlyAndComesBack) {
  std::vector<std::uint16_t> all(65536), back(all.size());
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  std::vector<float> wide(all.size());
  widen(all, wide);
  narrow(wide, back);
  for (std::size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(std::bit_cast<std::uint32_t>(wide[i]), std::uint32_t{all[i]} << 16);
    if (std::isnan(wide[i]))
      EXPECT_TRUE(std::isnan(widened(back[i])));
    else
      EXPECT_EQ(back[i], all[i]);
  }
  // Half way between two numbers the even one is nearest.
  const std::vector<float> between = {1 + 0x1p-8f, 1 + 3 * 0x1p-8f, -1 - 0x1p-8f,
                                      std::numeric_limits<float>::max()};
  std::vector<std::uint16_t> near(between.size());
  narrow(between, near);
  EXPECT_EQ(near, (std::vector<std::uint16_t>{0x3f80, 0x3f82, 0xbf80, 0x7f80}));
}

// The witness is arithmetic on what a number's bits mean.
TEST(HostKernels, EveryNumberOfFp16IsWidenedExactlyAndComesBack) {
  std::vector<std::uint16_t> all(65536), back(all.size());
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = static_cast<std::uint16_t>(i);
  std::vector<float> wide(all.size());
  widen_f16(all, wide);
  narrow_f16(wide, back);
  for (std::size_t i = 0; i < all.size(); ++i) {
    const int exponent = static_cast<int>(i >> 10 & 31), fraction = static_cast<int>(i & 1023);
    double value =
        std::ldexp(exponent == 0 ? fraction : 1024 + fraction, std::max(exponent, 1) - 25);
    if (exponent == 31) value = fraction == 0 ? HUGE_VAL : NAN;
    if (std::isnan(value)) {
      EXPECT_TRUE(std::isnan(wide[i]) && (back[i] & 0x7fff) > 0x7c00) << i;
      continue;
    }
    EXPECT_EQ(static_cast<double>(wide[i]), i < 32768 ? value : -value) << i;
    EXPECT_EQ(std::signbit(wide[i]), i >= 32768) << i;
    EXPECT_EQ(back[i], all[i]);
  }
  const std::vector<float> between = {1 + 0x1p-11f, 1 + 3 * 0x1p-11f, -0x1p-25f,
                                      3 * 0x1p-25f, 65519.0f,         65520.0f};
  std::vector<std::uint16_t> near(between.size());
  narrow_f16(between, near);
  EXPECT_EQ(near, (std::vector<std::uint16_t>{0x3c00, 0x3c02, 0x8000, 2, 0x7bff, 0x7c00}));
}

// U and O in fp32 in one place, or as they travel: momentum, Newton-Schulz and the step.
class Handed {
 public:
  Handed(const MuonSpec& spec, const Shape& shape, Kernels& kernels)
      : spec_(spec), shape_(shape), kernels_(kernels), g_(gaussian(formats::volume(shape), 1)) {}

  std::vector<float> weights(DType update, DType result) const {
    const std::uint64_t elems = g_.size();
    auto g = g_, m = gaussian(elems, 2), w = gaussian(elems, 3);
    std::vector<float> wide(elems), u_bytes(elems), o_bytes(elems);
    const Buffer room = buffer_of(std::span(wide));
    const Buffer u = room_for(u_bytes, update), o = room_for(o_bytes, result);
    const bool in_place = update == DType::f32, answers = result == DType::f32;
    kernels_.prepare(std::vector<PrepareRange>{{&spec_, buffer_of(std::span(g)),
                                                buffer_of(std::span(m)), in_place ? room : u}},
                     0.37f, {});
    for (const Block& block : blocks_of(spec_, shape_)) {
      std::vector<std::byte> scratch(newton_schulz_scratch_bytes(spec_, block.rows(), block.cols));
      const auto part = [&](const Buffer& all) { return all.sub(block.first, block.span()); };
      kernels_
          .orthogonalize({.spec = &spec_,
                          .matrix = block,
                          .u = part(room),
                          .in = in_place ? Buffer() : part(u),
                          .out = answers ? Buffer() : part(in_place ? o : u)},
                         buffer_of(std::span(scratch)), {})
          .wait();
    }
    const Buffer made = answers ? room : in_place ? o : u;
    kernels_.finish(std::vector<FinishRange>{{&spec_, 0.5, made, buffer_of(std::span(w)), {}}}, {});
    return w;
  }

 private:
  static Buffer room_for(std::vector<float>& bytes, DType dtype) {
    const Buffer all = buffer_of(std::as_writable_bytes(std::span(bytes)));
    return all.sub(0, bytes.size() * formats::bytes_of(dtype)).as(dtype);
  }

  const MuonSpec& spec_;
  const Shape shape_;
  Kernels& kernels_;
  const std::vector<float> g_;
};

TEST(HostKernels, UpdatesGiveTheSameBitsAsWhatTheyTravelAs) {
  const auto pool = libswap::Pool::start(3);  // of which two are workers
  ASSERT_TRUE(pool);
  const auto kernels = make_host_kernels({**pool});
  std::array<int, 3> narrowed{};  // U and O, O, none
  const Shape shape = {3, 96, 400};
  for (const Preset& preset : presets())
    for (const Split& split : {Split{}, Split{Split::Kind::groups, {8, 4, 4}}}) {
      MuonSpec spec = preset.spec();
      spec.split = split;
      if (!check_split(spec, shape)) continue;
      const DType update = update_dtype(spec), result = result_dtype(spec);
      const Handed handed(spec, shape, *kernels);
      EXPECT_TRUE(same_bits(handed.weights(update, result), handed.weights(DType::f32, DType::f32)))
          << preset.name;
      ++narrowed[update != DType::f32 ? 0 : result != DType::f32 ? 1 : 2];
    }
  EXPECT_GT(narrowed[0], 0);
  EXPECT_GT(narrowed[1], 0);
  const MuonSpec fp32 = MuonSpec::keller();
  EXPECT_EQ(update_dtype(fp32), DType::f32);
  EXPECT_EQ(result_dtype(fp32), DType::f32);
}

// One kernel after the other over ranges of awkward lengths, in fp32 and in bf16.
// Zeros of both signs among weights and O.
TEST(HostKernels, WhatIsHandedOutWithoutWeightsMakesOfThemWhatTheyWouldHaveBecome) {
  constexpr std::size_t kCount = 5000;
  const std::array<float, 4> zeros = {0.0f, -0.0f, 0.0f, -0.0f};
  libswap::Pool pool;
  const auto kernels = make_host_kernels({pool});
  for (const Preset& each : presets()) {
    MuonSpec spec = each.spec();
    spec.weight_decay = 0;
    spec.weights = Precision::fp32;
    if (spec.decay == Decay::l2) spec.decay = Decay::decoupled;
    auto o = gaussian(kCount, 1), w = gaussian(kCount, 2);
    for (std::size_t i = 0; i < 16; ++i) {
      o[i] = i % 2 == 0 ? zeros[i / 2 % 2] : o[i];
      w[i] = zeros[i / 4];
    }
    auto kept = w;
    std::vector<float> update(kCount);
    std::vector<std::uint16_t> narrow_update(kCount);
    kernels->finish(
        std::vector<FinishRange>{
            {&spec, 0.7, buffer_of(std::span(o)), buffer_of(std::span(w)), {}},
            {&spec, 0.7, buffer_of(std::span(o)), {}, buffer_of(std::span(update))},
            {&spec, 0.7, buffer_of(std::span(o)), {}, half(narrow_update)},
            {&spec, 0.7, buffer_of(std::span(o)), {}, {}}},
        {});
    for (std::size_t i = 0; i < kCount; ++i) kept[i] += update[i];
    EXPECT_TRUE(same_bits(kept, w)) << each.name;
    std::vector<std::uint16_t> rounded(kCount);
    narrow(update, rounded);
    EXPECT_EQ(narrow_update, rounded) << each.name;
  }
}

TEST(HostKernels, GradientsAndWeightsInBf16GiveTheBitsOfTheSameNumbers) {
  const auto pool = libswap::Pool::start(2);
  ASSERT_TRUE(pool);
  const auto kernels = make_host_kernels({**pool});
  const MuonSpec muon = MuonSpec::keller();
  const AdamSpec adam;
  for (const std::size_t count : {1u, 4095u, 4097u, 65537u, 200001u}) {
    std::vector<std::uint16_t> bits(count), out16(count);
    narrow(gaussian(count, 1), bits);
    std::vector<float> g(count), out(count), wanted(count);
    for (std::size_t i = 0; i < count; ++i) g[i] = widened(bits[i]);
    const auto look = [&](const Buffer& gradient) {
      Look found;
      kernels->look(std::vector<LookRange>{{gradient, 2.0, true}},
                    buffer_of(std::as_writable_bytes(std::span(&found, 1))), {});
      return found;
    };
    const Look one = look(buffer_of(std::span(g))), other = look(half(bits));
    EXPECT_EQ(one.squares, other.squares) << count;
    EXPECT_EQ(one.largest, other.largest) << count;

    auto m = gaussian(count, 2), m16 = m;
    std::vector<float> u(count), u16(count);
    const auto prepare = [&](const Buffer& gradient, std::vector<float>& momentum,
                             std::vector<float>& update) {
      kernels->prepare(std::vector<PrepareRange>{{&muon, gradient, buffer_of(std::span(momentum)),
                                                  buffer_of(std::span(update))}},
                       0.37f, {});
    };
    prepare(buffer_of(std::span(g)), m, u);
    prepare(half(bits), m16, u16);
    EXPECT_TRUE(same_bits(m, m16) && same_bits(u, u16)) << count;

    auto w = gaussian(count, 3), w16 = w, a = gaussian(count, 4), a16 = a;
    std::vector<float> v(count, 0.5f), v16 = v;
    const auto step = [&](const Buffer& gradient, const Buffer& to, std::vector<float>& weights,
                          std::vector<float>& first, std::vector<float>& second) {
      kernels->finish(
          std::vector<FinishRange>{
              {&muon, 1, buffer_of(std::span(u)), buffer_of(std::span(weights)), {}}},
          {});
      kernels->adamw(
          std::vector<AdamRange>{{&adam, 3, gradient, buffer_of(std::span(weights)),
                                  buffer_of(std::span(first)), buffer_of(std::span(second)), to}},
          0.37f, {});
    };
    step(buffer_of(std::span(g)), buffer_of(std::span(out)), w, a, v);
    step(half(bits), half(out16), w16, a16, v16);
    EXPECT_TRUE(same_bits(w, w16) && same_bits(a, a16) && same_bits(v, v16)) << count;
    EXPECT_TRUE(same_bits(out, w)) << count;
    std::vector<std::uint16_t> rounded(count), handed(count);
    narrow(w, rounded);
    EXPECT_EQ(out16, rounded) << count;
    kernels->hand_out(
        std::vector<OutRange>{{buffer_of(std::span(w)), half(handed)},
                              {buffer_of(std::span(w)), buffer_of(std::span(wanted))}},
        {});
    EXPECT_EQ(handed, rounded) << count;
    EXPECT_TRUE(same_bits(wanted, w)) << count;
  }
}

// Where a weight is not its master rounded: also where only the sign of a zero is another one.
TEST(HostKernels, MastersTakeTheWeightsThatAreNotTheirs) {
  libswap::Pool pool;
  const auto kernels = make_host_kernels({pool});
  for (const std::size_t count : {1u, 4097u, 200001u}) {
    std::vector<float> master = gaussian(count, 3), whole, wanted;
    master[0] = 0;
    whole = wanted = master;
    std::vector<std::uint16_t> given(count);
    narrow(master, given);
    for (std::size_t i = 0; i < count; i += 3) {
      given[i] = static_cast<std::uint16_t>(given[i] ^ (i == 0 ? 0x8000 : 1));
      wanted[i] = widened(given[i]);
    }
    const auto bits = buffer_of(std::as_writable_bytes(std::span(given))).as(DType::bf16);
    kernels->take(
        std::vector<TakeRange>{{bits, buffer_of(std::span(master))},
                               {buffer_of(std::span(wanted)), buffer_of(std::span(whole))}},
        {});
    EXPECT_TRUE(same_bits(master, wanted)) << count;
    EXPECT_TRUE(same_bits(whole, wanted)) << count;
  }
}

}  // namespace
}  // namespace ebb::libmuon::host_kernels_tests
