// The plugin's kernels over the stub, beside the host's: elementwise work and the norm to the bit,
// Newton-Schulz as near as sums in another order are.
#include <bit>
#include <limits>

#include "ebb/libmuon/kernels/kernels.h"
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
using test::on_device;
using test::on_host;
using test::Plugged;
using test::There;
using testing::gaussian;
using testing::relative_distance;
using testing::same_bits;

TEST(CudaKernels, FindTheHostsNormAndTheLargestOfAllGradients) {
  Both both;
  for (const std::size_t count : {1u, 63u, 1025u, 70001u}) {
    auto values = gaussian(count, 1);
    for (std::size_t i = 0; i < count; i += 7) values[i] *= 1e-30f;
    Floats g(both.plugged.device(), values, DType::f32);
    Halves h(both.plugged.device(), narrowed(values), DType::bf16);
    There<std::byte> found(both.plugged.device(), std::vector<std::byte>(sizeof(Look)), DType::u8);
    Look host;
    both.host->look(
        std::vector<LookRange>{
            {g.host(), 2.0, true}, {h.host(), 3.0, true}, {g.host(), 1e-3, false}},
        buffer_of(std::as_writable_bytes(std::span(&host, 1))), {});
    const Event done = both.there->look(
        std::vector<LookRange>{
            {g.buffer(), 2.0, true}, {h.buffer(), 3.0, true}, {g.buffer(), 1e-3, false}},
        found.buffer(), {});
    Look there;
    std::memcpy(&there, found.back(done).data(), sizeof(Look));
    ExactSum sum{.limbs = there.squares};
    sum.carry();
    EXPECT_EQ(sum.limbs, host.squares) << count;
    EXPECT_EQ(there.largest, host.largest) << count;
  }
}

TEST(CudaKernels, PrepareWithTheHostsBits) {
  Both both(50);
  for (const char* const name : {"keller", "moonlight", "emerging", "dion", "gram"})
    for (const std::size_t count : {1u, 1000u, 4097u}) {
      const MuonSpec spec = *preset(name);
      Floats g(both.plugged.device(), gaussian(count, 1), DType::f32);
      Halves g16(both.plugged.device(), narrowed(gaussian(count, 2)), DType::bf16);
      Floats m(both.plugged.device(), gaussian(count, 3), DType::f32);
      Halves m16(both.plugged.device(), narrowed(gaussian(count, 4)), DType::bf16);
      Floats u(both.plugged.device(), std::vector<float>(count), DType::f32),
          v = {both.plugged.device(), std::vector<float>(count), DType::f32};
      auto hm = m.here, hu = u.here, hv = v.here;
      auto hm16 = m16.here;
      both.host->prepare(
          std::vector<PrepareRange>{
              {&spec, g16.host(), buffer_of(std::span(hm)), buffer_of(std::span(hu))},
              {&spec, g.host(), buffer_of(std::as_writable_bytes(std::span(hm16))).as(DType::bf16),
               buffer_of(std::span(hv))}},
          0.37f, {});
      const Event done = both.there->prepare(
          std::vector<PrepareRange>{{&spec, g16.buffer(), m.buffer(), u.buffer()},
                                    {&spec, g.buffer(), m16.buffer(), v.buffer()}},
          0.37f, {});
      expect_same(m, hm, done, name);
      expect_same(m16, hm16, done, name);
      expect_same(u, hu, done, name);
      expect_same(v, hv, done, name);
    }
}

// Decay lies where U goes, or apart from a U that travels narrower.
TEST(CudaKernels, AddDecayToGradientsWithTheHostsBits) {
  Both both(50);
  auto& device = both.plugged.device();
  MuonSpec spec = MuonSpec::keller();
  spec.decay = Decay::l2;
  spec.weight_decay = 0.3;
  for (const Momentum momentum : {Momentum::ema, Momentum::sum})
    for (const bool nesterov : {false, true}) {
      spec.momentum = momentum;
      spec.nesterov = nesterov;
      constexpr std::size_t kCount = 4097;
      Floats g(device, gaussian(kCount, 1), DType::f32), w(device, gaussian(kCount, 2), DType::f32);
      Floats m(device, gaussian(kCount, 3), DType::f32), n(device, gaussian(kCount, 4), DType::f32);
      Floats u(device, std::vector<float>(kCount), DType::f32);
      Floats apart(device, std::vector<float>(kCount), DType::f32);
      Halves narrow(device, std::vector<std::uint16_t>(kCount), DType::bf16);
      auto hm = m.here, hn = n.here, hu = u.here, hapart = apart.here;
      auto hnarrow = narrow.here;
      const auto step = [&](Kernels& kernels, const Buffer& gb, const Buffer& wb, const Buffer& mb,
                            const Buffer& nb, const Buffer& ub, const Buffer& apartb,
                            const Buffer& narrowb) {
        const Event done =
            kernels.decay(std::vector<DecayRange>{{&spec, wb, ub}, {&spec, wb, apartb}}, {});
        std::vector<PrepareRange> ranges = {{&spec, gb, mb, ub}, {&spec, gb, nb, narrowb}};
        ranges[1].decay = apartb;
        return kernels.prepare(ranges, 0.37f, {{done}});
      };
      step(*both.host, g.host(), w.host(), buffer_of(std::span(hm)), buffer_of(std::span(hn)),
           buffer_of(std::span(hu)), buffer_of(std::span(hapart)),
           buffer_of(std::as_writable_bytes(std::span(hnarrow))).as(DType::bf16));
      const Event done = step(*both.there, g.buffer(), w.buffer(), m.buffer(), n.buffer(),
                              u.buffer(), apart.buffer(), narrow.buffer());
      expect_same(m, hm, done, "momentum");
      expect_same(n, hn, done, "momentum of the second");
      expect_same(u, hu, done, "update");
      expect_same(narrow, hnarrow, done, "update in bf16");
    }
}

TEST(CudaKernels, TakeAGradientThatIsNotThereAsZeros) {
  Both both;
  auto& device = both.plugged.device();
  const MuonSpec muon = MuonSpec::keller();
  const AdamSpec adam;
  Floats m(device, gaussian(500, 1), DType::f32), u(device, gaussian(500, 2), DType::f32);
  Floats w(device, gaussian(500, 3), DType::f32), v(device, std::vector<float>(500, 2), DType::f32);
  auto hm = m.here, hu = u.here, hw = w.here, hv = v.here;
  const auto step = [&](Kernels& kernels, Buffer mb, Buffer ub, Buffer wb, Buffer vb) {
    kernels.prepare(std::vector<PrepareRange>{{&muon, {}, mb, ub}}, 0.5f, {});
    return kernels.adamw(std::vector<AdamRange>{{&adam, 2, {}, wb, mb, vb, {}}}, 0.5f, {});
  };
  const auto host = [](std::vector<float>& values) { return buffer_of(std::span(values)); };
  step(*both.host, host(hm), host(hu), host(hw), host(hv));
  const Event done = step(*both.there, m.buffer(), u.buffer(), w.buffer(), v.buffer());
  expect_same(m, hm, done, "moment");
  expect_same(u, hu, done, "update");
  expect_same(w, hw, done, "weights");
  expect_same(v, hv, done, "second moment");
}

TEST(CudaKernels, FinishAddHandOutAndAdamWithTheHostsBits) {
  Both both(50);
  auto& device = both.plugged.device();
  const AdamSpec adam = AdamSpec::torch();
  for (MuonSpec spec : {*preset("keller"), *preset("dion"), *preset("gram"), *preset("torch")})
    for (const Precision weights : {Precision::fp32, Precision::bf16}) {
      spec.weights = weights;
      spec.weight_decay = 0.1;
      const std::size_t count = 3001;
      Floats o(device, gaussian(count, 1), DType::f32), w(device, gaussian(count, 2), DType::f32);
      Floats a(device, gaussian(count, 3), DType::f32), v(device, gaussian(count, 4), DType::f32);
      for (float& value : v.here) value *= value;
      libswap::copy(v.host(), v.buffer(), {}).wait();
      Halves g(device, narrowed(gaussian(count, 5)), DType::bf16);
      Halves out(device, std::vector<std::uint16_t>(count), DType::bf16);
      Floats wide(device, std::vector<float>(count), DType::f32);
      auto hw = w.here, ha = a.here, hv = v.here, hwide = wide.here;
      auto hout = out.here;
      const auto steps = [&](Kernels& kernels, Buffer ob, Buffer wb, Buffer ab, Buffer vb,
                             Buffer gb, Buffer outb, Buffer wideb) {
        Event done = kernels.finish(std::vector<FinishRange>{{&spec, 0.7, ob, wb, outb}}, {});
        done =
            kernels.adamw(std::vector<AdamRange>{{&adam, 3, gb, wb, ab, vb, {}}}, 0.37f, {{done}});
        done = kernels.add(std::vector<AddRange>{{gb, ab, false}}, {{done}});
        done = kernels.hand_out(std::vector<OutRange>{{wb, wideb}, {gb, vb}}, {{done}});
        // The first of these are what is handed out.
        done = kernels.take(std::vector<TakeRange>{{ob, ab}, {outb, wb}}, {{done}});
        return kernels.take(std::vector<TakeRange>{{gb, wb}}, {{done}});
      };
      steps(*both.host, o.host(), buffer_of(std::span(hw)), buffer_of(std::span(ha)),
            buffer_of(std::span(hv)), g.host(),
            buffer_of(std::as_writable_bytes(std::span(hout))).as(DType::bf16),
            buffer_of(std::span(hwide)));
      const Event done = steps(*both.there, o.buffer(), w.buffer(), a.buffer(), v.buffer(),
                               g.buffer(), out.buffer(), wide.buffer());
      expect_same(w, hw, done, "weights");
      expect_same(a, ha, done, "first moment");
      expect_same(v, hv, done, "second moment");
      expect_same(out, hout, done, "weights in bf16");
      expect_same(wide, hwide, done, "handed out");
    }
}

TEST(CudaKernels, FinishWithoutWeightsAsTheHostDoes) {
  Both both(50);
  auto& device = both.plugged.device();
  for (MuonSpec spec : {*preset("keller"), *preset("gram"), *preset("torch")}) {
    spec.weight_decay = 0;
    Floats o(device, gaussian(3001, 1), DType::f32);
    o.here[7] = 0;
    libswap::copy(o.host(), o.buffer(), {}).wait();
    Halves narrow(device, std::vector<std::uint16_t>(o.here.size()), DType::bf16);
    Floats wide(device, std::vector<float>(o.here.size()), DType::f32);
    auto hwide = wide.here;
    auto hnarrow = narrow.here;
    const auto steps = [&](Kernels& kernels, const Buffer& ob, const Buffer& wideb,
                           const Buffer& narrowb) {
      return kernels.finish(
          std::vector<FinishRange>{{&spec, 0.7, ob, {}, wideb}, {&spec, 0.7, ob, {}, narrowb}}, {});
    };
    steps(*both.host, o.host(), buffer_of(std::span(hwide)),
          buffer_of(std::as_writable_bytes(std::span(hnarrow))).as(DType::bf16));
    const Event done = steps(*both.there, o.buffer(), wide.buffer(), narrow.buffer());
    expect_same(wide, hwide, done, "updates");
    expect_same(narrow, hnarrow, done, "updates in bf16");
  }
}

// O as it travels.
TEST(CudaKernels, FinishWithWhatTravelsNarrowerAsTheHostDoes) {
  Both both(50);
  auto& device = both.plugged.device();
  for (const MuonSpec& spec : {*preset("keller"), *preset("deepspeed"), *preset("torch")})
    for (const DType dtype : {DType::bf16, DType::f16}) {
      std::vector<std::uint16_t> bits = narrowed(gaussian(3001, 1));
      if (dtype == DType::f16)
        for (std::uint16_t& one : bits) one = static_cast<std::uint16_t>(one & 0xbbffu);  // finite
      Halves o(device, bits, dtype);
      Floats w(device, gaussian(3001, 2), DType::f32);
      auto hw = w.here;
      both.host->finish(
          std::vector<FinishRange>{{&spec, 0.7, o.host(), buffer_of(std::span(hw)), {}}}, {});
      const Event done = both.there->finish(
          std::vector<FinishRange>{{&spec, 0.7, o.buffer(), w.buffer(), {}}}, {});
      expect_same(w, hw, done, name_of(dtype).data());
    }
}

struct Size {
  std::uint64_t rows, cols;
};

// Every form, precision and rounding that a framework has. In 16 bits one sum in another order may
// round to the next number, which the iterations carry on: a few of 2^-8 or 2^-11.
TEST(CudaKernels, OrthogonalizeAsTheHostDoes) {
  Both both;
  for (const Preset& each : presets())
    for (const Size shape : {Size{24, 40}, Size{40, 24}, Size{33, 33}, Size{1, 17}}) {
      const MuonSpec spec = each.spec();
      const Block block = Block::matrix(shape.rows, shape.cols);
      const auto u = gaussian(block.span(), 7);
      const double near =
          relative_distance(on_device(both, spec, block, u), on_host(spec, block, u, *both.pool));
      const double most = spec.precision == Precision::bf16   ? 0.05
                          : spec.precision != Precision::fp32 ? 0.01
                                                              : 1e-5;
      EXPECT_LE(near, most) << each.name << " " << shape.rows << " x " << shape.cols;
    }
  MuonSpec fp32 = MuonSpec::keller();
  for (const Form form : {Form::standard, Form::gram})
    for (const Size shape : {Size{24, 40}, Size{70, 20}, Size{33, 33}}) {
      fp32.form = form;
      fp32.restarts = {2};
      const Block block = Block::matrix(shape.rows, shape.cols);
      const auto u = gaussian(block.span(), 8);
      EXPECT_LE(
          relative_distance(on_device(both, fp32, block, u), on_host(fp32, block, u, *both.pool)),
          2e-6);
    }
}

// A device may round ties its own way, so no bits are said; but it rounds, and in TF32 alone.
TEST(CudaKernels, RoundOperandsToTf32) {
  Both both;
  MuonSpec fp32 = MuonSpec::keller(), tf32 = fp32;
  fp32.precision = Precision::fp32;
  tf32.precision = Precision::tf32;
  for (MuonSpec* const spec : {&fp32, &tf32}) spec->iterations.resize(2);
  const Block block = Block::matrix(96, 160);
  const auto u = gaussian(block.span(), 9);
  const auto there = on_device(both, tf32, block, u);
  EXPECT_LE(relative_distance(there, on_host(tf32, block, u, *both.pool)), 1e-3);
  EXPECT_GE(relative_distance(there, on_device(both, fp32, block, u)), 1e-5);
  EXPECT_LE(relative_distance(on_device(both, fp32, block, u), on_host(fp32, block, u, *both.pool)),
            1e-6);
}

// U comes narrower and O leaves so, in the same place or in another; what is between is fp32's.
TEST(CudaKernels, WidenAndRoundWhatTravels) {
  Both both;
  auto& device = both.plugged.device();
  const Block block = Block::matrix(24, 40);
  for (const char* const name : {"torch", "deepspeed"}) {
    const MuonSpec spec = *preset(name);
    const DType result = result_dtype(spec);
    const auto bits = narrowed(gaussian(2 * block.span(), 7));
    std::vector<float> wide(bits.size());
    widen(bits, wide);
    Floats u(device, std::vector<float>(bits.size()), DType::f32);
    Halves in(device, bits, DType::bf16);
    Halves out(device, std::vector<std::uint16_t>(bits.size()), result);
    auto room = device.allocate(both.plugged.accelerator().workspace_bytes(spec, block, 2));
    ASSERT_TRUE(room);
    MatrixBatch batch{&spec, block, 2, Bf16::emulated, u.buffer()};
    batch.in = in.buffer();
    batch.out = out.buffer();
    const Event done = both.there->orthogonalize(batch, (*room).buffer(), {});
    const auto o = on_device(both, spec, block, wide);
    EXPECT_TRUE(same_bits(u.back(done), o)) << name;
    std::vector<std::uint16_t> rounded(o.size());
    if (result == DType::bf16)
      narrow(o, rounded);
    else
      narrow_f16(o, rounded);
    EXPECT_EQ(out.back(done), rounded) << name;
  }
}

// Parts of q, k and v: rows in runs that lie apart, what lies between them stays.
TEST(CudaKernels, OrthogonalizeRowsThatLieApart) {
  Both both;
  const MuonSpec spec = MuonSpec::keller();
  const Block block = {.cols = 20, .run = 3, .runs = 4, .stride = 5};
  const auto u = gaussian(block.span(), 9);
  const auto there = on_device(both, spec, block, u), host = on_host(spec, block, u, *both.pool);
  EXPECT_LE(relative_distance(there, host), 2e-6);
  for (std::uint64_t i = 0; i < u.size(); ++i) {
    const bool between = i / block.cols % block.stride >= block.run;
    EXPECT_TRUE(!between || there[i] == u[i]) << i;
  }
}

// One matrix alone, or among seven, or among three, which are multiplied one by one.
TEST(CudaKernels, BitsDoNotDependOnHowManyMatricesAreOrthogonalizedAtOnce) {
  Both both;
  for (const MuonSpec& spec : {MuonSpec::keller(), *preset("gram")}) {
    const Block block = Block::matrix(24, 40);
    const auto all = gaussian(7 * block.span(), 10);
    const auto at = [&](const std::vector<float>& of, std::uint64_t i) {
      return std::vector<float>(of.begin() + static_cast<std::ptrdiff_t>(i * block.span()),
                                of.begin() + static_cast<std::ptrdiff_t>((i + 1) * block.span()));
    };
    const std::vector<float> some(all.begin(),
                                  all.begin() + static_cast<std::ptrdiff_t>(3 * block.span()));
    for (const auto& u : {all, some}) on_device(both, spec, block, u);  // chooses algorithms
    const std::uint64_t before = both.plugged.calls("cublasLtMatmul");
    const auto seven = on_device(both, spec, block, all);
    const std::uint64_t together = both.plugged.calls("cublasLtMatmul") - before;
    const auto three = on_device(both, spec, block, some);
    // Of the stub; nothing is known of a device's.
    EXPECT_EQ(both.plugged.calls("cublasLtMatmul") - before - together, 3 * together);
    for (std::uint64_t i = 0; i < 7; ++i) {
      const auto alone = on_device(both, spec, block, at(all, i));
      EXPECT_TRUE(same_bits(alone, at(seven, i)));
      if (i < 3) {
        EXPECT_TRUE(same_bits(alone, at(three, i)));
      }
    }
  }
}

TEST(CudaKernels, AMatrixOfZerosOrNotFiniteGivesZerosAndItsNeighboursTheirs) {
  Both both;
  const MuonSpec spec = MuonSpec::keller();
  const Block block = Block::matrix(10, 16);
  const auto one = gaussian(block.span(), 11);
  for (const float bad : {0.0f, std::numeric_limits<float>::quiet_NaN()}) {
    std::vector<float> u(block.span(), bad);
    u.insert(u.end(), one.begin(), one.end());
    const auto o = on_device(both, spec, block, u);
    for (std::uint64_t i = 0; i < block.span(); ++i)
      EXPECT_EQ(std::bit_cast<std::uint32_t>(o[i]), 0u);
    const auto alone = on_device(both, spec, block, one);
    EXPECT_TRUE(same_bits(std::span(o).subspan(block.span()), alone));
  }
}

TEST(CudaStubKernels, ThatFailSayWhichWorkItWas) {
  const MuonSpec spec = MuonSpec::keller();
  const Block block = Block::matrix(10, 16);
  const std::vector<std::pair<const char*, std::string>> failures = {
      {"sums_kernel", "norms"},
      {"decide_kernel", "norms"},
      {"load_kernel", "loading"},
      {"cublasLtMatmul", "cublasLtMatmul"},
      {"mirror_kernel", "mirroring"},
      {"store_kernel", "storing"},
      {"algorithms", "cuBLASLt has no algorithm"}};
  for (const auto& [function, what] : failures) {
    Both both;
    Floats u(both.plugged.device(), gaussian(block.span(), 1), DType::f32);
    auto room =
        both.plugged.device().allocate(both.plugged.accelerator().workspace_bytes(spec, block, 1));
    ASSERT_TRUE(room);
    both.plugged.fail(function);
    both.there->orthogonalize({&spec, block, 1, Bf16::emulated, u.buffer()}, (*room).buffer(), {})
        .wait();
    const auto status = both.plugged.device().status();
    ASSERT_FALSE(status) << function;
    EXPECT_EQ(status.error().code, Code::io);
    EXPECT_NE(status.error().message.find(what), std::string::npos) << status.error().message;
  }
}

TEST(CudaStubKernels, TheFingerprintNamesTheLibraryAndTheDevice) {
  Plugged plugged;
  EXPECT_EQ(plugged.accelerator().fingerprint(0),
            "cuBLASLt 130101 Stub elementwise=ebb symmetric=library");
}

}  // namespace
}  // namespace ebb::libmuon
