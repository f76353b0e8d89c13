// Kernels of state that not every model has, beside the host's to the bit: momentum in blocks of
// int8, second moments.
#include "ebb/formats/core/int8_blocks.h"
#include "ebb/libmuon/spec/presets.h"
#include "tests/libmuon/cuda/both.h"
#include "tests/libmuon/kernels/numbers.h"

namespace ebb::libmuon {
namespace {

using libswap::Buffer;
using libswap::buffer_of;
using libswap::Event;
using test::Both;
using test::expect_same;
using test::Floats;
using test::Halves;
using test::narrowed;
using test::There;
using testing::gaussian;

Buffer bytes_of(std::vector<std::uint16_t>& bits) {
  return buffer_of(std::as_writable_bytes(std::span(bits))).as(DType::bf16);
}

struct Blocks {
  std::vector<std::int8_t> codes;
  std::vector<float> scales;
};

// The last block is not whole; one is of zeros.
Blocks some_blocks(std::size_t count, std::uint64_t block) {
  auto values = gaussian(count, 5);
  std::fill_n(values.begin(), std::min<std::size_t>(block, count), 0.0f);
  Blocks blocks{std::vector<std::int8_t>(count), std::vector<float>((count + block - 1) / block)};
  formats::to_int8_blocks(values, block, blocks.codes, blocks.scales);
  return blocks;
}

TEST(CudaKernels, PrepareMomentumInBlocksOfInt8WithTheHostsBits) {
  Both both(50);
  auto& device = both.plugged.device();
  constexpr std::uint64_t kBlock = 256;
  for (MuonSpec spec : {*preset("keller"), *preset("emerging"), *preset("dion")})
    for (const bool nesterov : {false, true})
      for (const Decay decay : {Decay::decoupled, Decay::l2})
        for (const std::size_t count : {1u, 256u, 10000u}) {
          spec.nesterov = nesterov;
          spec.decay = decay;
          const auto blocks = some_blocks(count, kBlock);
          Floats g(device, gaussian(count, 1), DType::f32),
              u(device, gaussian(count, 2), DType::f32);
          Halves g16(device, narrowed(gaussian(count, 1)), DType::bf16);
          There<std::int8_t> m(device, blocks.codes, DType::i8);
          Floats scales(device, blocks.scales, DType::f32);
          auto hu = u.here, hscales = scales.here;
          auto hm = m.here;
          const auto step = [&](Kernels& kernels, const Buffer& gb, const Buffer& mb,
                                const Buffer& sb, const Buffer& ub) {
            return kernels.prepare(std::vector<PrepareRange>{{&spec, gb, mb, ub, sb, kBlock}},
                                   0.37f, {});
          };
          const Buffer host_m = buffer_of(std::as_writable_bytes(std::span(hm))).as(DType::i8);
          const auto host = [](std::vector<float>& values) { return buffer_of(std::span(values)); };
          step(*both.host, g.host(), host_m, host(hscales), host(hu));
          step(*both.host, g16.host(), host_m, host(hscales), host(hu));
          step(*both.there, g.buffer(), m.buffer(), scales.buffer(), u.buffer());
          const Event done =
              step(*both.there, g16.buffer(), m.buffer(), scales.buffer(), u.buffer());
          expect_same(m, hm, done, "codes");
          expect_same(scales, hscales, done, "scales");
          expect_same(u, hu, done, "updates");
        }
}

// U travels in bf16 and what decays waits apart from it; there is no gradient.
TEST(CudaKernels, PrepareBlocksWhoseUpdateTravelsNarrowerWithTheHostsBits) {
  Both both(50);
  auto& device = both.plugged.device();
  MuonSpec spec = *preset("torch");
  spec.decay = Decay::l2;
  const auto blocks = some_blocks(1000, 64);
  There<std::int8_t> m(device, blocks.codes, DType::i8);
  Floats scales(device, blocks.scales, DType::f32), decay(device, gaussian(1000, 3), DType::f32);
  Halves u(device, std::vector<std::uint16_t>(1000), DType::bf16);
  auto hm = m.here;
  auto hscales = scales.here;
  auto hu = u.here;
  both.host->prepare(
      std::vector<PrepareRange>{{&spec,
                                 {},
                                 buffer_of(std::as_writable_bytes(std::span(hm))).as(DType::i8),
                                 bytes_of(hu),
                                 buffer_of(std::span(hscales)),
                                 64,
                                 decay.host()}},
      0.5f, {});
  const Event done = both.there->prepare(
      std::vector<PrepareRange>{
          {&spec, {}, m.buffer(), u.buffer(), scales.buffer(), 64, decay.buffer()}},
      0.5f, {});
  expect_same(m, hm, done, "codes");
  expect_same(scales, hscales, done, "scales");
  expect_same(u, hu, done, "updates");
}

struct Normalised {
  SecondMoment second;
  EpsRule rule;
  Block block;
  std::uint64_t count;
};

// Of rows and of columns, of rows that lie apart, of one matrix and of several, and twice: the
// moments of before count.
// Any two halves are a number, so that these say what any master becomes.
struct InHalves {
  static constexpr std::size_t kCount = 3001;
  explicit InHalves(libswap::Device& device)
      : o(device, gaussian(kCount, 1), DType::f32),
        m(device, gaussian(kCount, 2), DType::f32),
        v(device, std::vector<float>(kCount, 2), DType::f32),
        wide(device, std::vector<float>(kCount), DType::f32),
        g(device, narrowed(gaussian(kCount, 3)), DType::bf16),
        high(device, narrowed(gaussian(kCount, 4)), DType::bf16),
        out(device, narrowed(gaussian(kCount, 5)), DType::bf16),
        low(device, narrowed(gaussian(kCount, 6)), DType::u16),
        other(device, narrowed(gaussian(kCount, 7)), DType::u16),
        taken(device, narrowed(gaussian(kCount, 8)), DType::u16) {}

  // What is handed out goes elsewhere, and then where the high halves lie.
  template <typename At>
  Event step(Kernels& kernels, const MuonSpec& spec, const At& at) {
    const AdamSpec adam = AdamSpec::torch();
    Event done = kernels.finish(
        std::vector<FinishRange>{{&spec, 0.7, at(o), at(low), at(out), at(high)}}, {});
    done = kernels.adamw(
        std::vector<AdamRange>{{&adam, 3, at(g), at(low), at(m), at(v), at(out), at(out)}}, 0.37f,
        {{done}});
    done =
        kernels.hand_out(std::vector<OutRange>{{at(low), at(wide)}, {at(m), at(other)}}, {{done}});
    done = kernels.take(std::vector<TakeRange>{{{}, at(taken)}}, {{done}});
    done.wait();
    return done;
  }

  Floats o, m, v, wide;
  Halves g, high, out, low, other, taken;
};

TEST(CudaKernels, StepMastersInHalvesWithTheHostsBits) {
  Both both(50);
  auto& device = both.plugged.device();
  for (const char* const name : {"keller", "dion", "gram"}) {
    const MuonSpec spec = *preset(name);
    InHalves here(device), there(device);
    here.step(*both.host, spec, [](auto& each) { return each.host(); });
    const Event done = there.step(*both.there, spec, [](auto& each) { return each.buffer(); });
    expect_same(there.low, here.low.here, done, "low halves");
    expect_same(there.out, here.out.here, done, "high halves");
    expect_same(there.m, here.m.here, done, "first moment");
    expect_same(there.v, here.v.here, done, "second moment");
    expect_same(there.wide, here.wide.here, done, "low halves as they travel");
    expect_same(there.other, here.other.here, done, "low halves that came");
    expect_same(there.taken, here.taken.here, done, "low halves of what was taken");
  }
}

TEST(CudaKernels, NormaliseWithTheHostsBits) {
  Both both(50);
  auto& device = both.plugged.device();
  const Block apart = {.cols = 20, .run = 3, .runs = 4, .stride = 5};
  for (const auto& [second, rule, block, count] :
       {Normalised{SecondMoment::rows, EpsRule::add, Block::matrix(24, 40), 1},
        Normalised{SecondMoment::rows, EpsRule::clamp, Block::matrix(1500, 7), 3},
        Normalised{SecondMoment::longer, EpsRule::add, Block::matrix(24, 1300), 2},
        Normalised{SecondMoment::longer, EpsRule::clamp, Block::matrix(1, 17), 1},
        Normalised{SecondMoment::rows, EpsRule::add, apart, 1}})
    for (const char* const name : {"keller", "dion"}) {
      MuonSpec spec = *preset(name);
      spec.second_moment = second;
      spec.second_beta = 0.9;
      spec.second_eps_rule = rule;
      const bool of_rows = moments_of_rows(spec, block);
      const std::uint64_t each = of_rows ? block.span() / block.cols : block.cols;
      Floats o(device, gaussian(count * block.span(), 1), DType::f32);
      Floats v(device, std::vector<float>(count * each, 0.01f), DType::f32);
      Halves out(device, std::vector<std::uint16_t>(o.here.size()), DType::bf16);
      auto ho = o.here, hv = v.here;
      auto hout = out.here;
      const auto step = [&](Kernels& kernels, const Buffer& ob, const Buffer& vb,
                            const Buffer& outb) {
        MatrixBatch batch{&spec, block, count, Bf16::emulated, ob};
        batch.out = outb;
        kernels.normalise(std::vector<NormaliseRange>{{batch, vb}}, {});
        return kernels.normalise(std::vector<NormaliseRange>{{batch, vb}}, {});
      };
      step(*both.host, buffer_of(std::span(ho)), buffer_of(std::span(hv)), bytes_of(hout));
      const Event done = step(*both.there, o.buffer(), v.buffer(), out.buffer());
      const std::string what = compose("{} x {} of {}", block.rows(), block.cols, name);
      expect_same(v, hv, done, "moments of " + what);
      expect_same(o, ho, done, what);
      expect_same(out, hout, done, what + ", narrower");
    }
}

TEST(CudaKernels, NormaliseTellsWhichMatrixIsNotFinite) {
  Both both;
  auto& device = both.plugged.device();
  MuonSpec spec = MuonSpec::keller();
  spec.second_moment = SecondMoment::rows;
  const Block block = Block::matrix(4, 6);
  auto numbers = gaussian(3 * block.span(), 1);
  numbers[block.span() + 3] = std::numeric_limits<float>::infinity();
  Floats o(device, numbers, DType::f32), v(device, std::vector<float>(12), DType::f32);
  There<std::uint32_t> told(device, {0}, DType::u32);
  const NormaliseRange range{{.spec = &spec,
                              .matrix = block,
                              .count = 3,
                              .u = o.buffer(),
                              .non_finite = told.buffer(),
                              .number = 5},
                             v.buffer()};
  EXPECT_EQ(told.back(both.there->normalise({&range, 1}, {}))[0], 6u);
}

// More than are computed at once: the number counts from the first of all.
TEST(CudaKernels, OrthogonalizeTellsWhichOfManyThousandsIsNotFinite) {
  Both both;
  auto& device = both.plugged.device();
  const MuonSpec spec = MuonSpec::keller();
  const Block block = Block::matrix(1, 2);
  constexpr std::uint64_t kCount = 4100, kInvalid = 4098;
  auto numbers = gaussian(kCount * block.span(), 1);
  numbers[kInvalid * block.span()] = std::numeric_limits<float>::infinity();
  Floats u(device, numbers, DType::f32);
  There<std::uint32_t> told(device, {0}, DType::u32);
  const auto room =
      device.allocate(both.plugged.accelerator().workspace_bytes(spec, block, kCount));
  ASSERT_TRUE(room);
  const Event done = both.there->orthogonalize({.spec = &spec,
                                                .matrix = block,
                                                .count = kCount,
                                                .u = u.buffer(),
                                                .non_finite = told.buffer(),
                                                .number = 5},
                                               (*room).buffer(), {});
  EXPECT_EQ(told.back(done)[0], kInvalid + 5);
}

}  // namespace
}  // namespace ebb::libmuon
