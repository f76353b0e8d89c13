// How the plugin multiplies: its own symmetric products, the measurement that chooses them, and
// graphs.
#include "ebb/libmuon/spec/presets.h"
#include "tests/libmuon/cuda/both.h"
#include "tests/libmuon/kernels/numbers.h"

namespace ebb::libmuon::products_tests {
namespace {

using libswap::Event;
using test::Both;
using test::Floats;
using test::on_device;
using test::on_host;
using test::Plugged;
using testing::gaussian;
using testing::relative_distance;
using testing::same_bits;

constexpr std::uint32_t kOwn = 9;                                      // from 16 rows on
constexpr const char* kByAnother = "products by a batch's algorithm";  // the stub's

struct Shape {
  std::uint64_t rows, cols;
};

// Sides below and beyond that of a tile, 128, and parts of the 64 that a stage has; more of them in
// emulated_test.cpp. Of one matrix and of two: the same bits.
TEST(CudaKernels, OwnSymmetricProductsAreNearToTheHostsWhateverTheShape) {
  Both both(0, 16);
  if (both.plugged.accelerator().choice_in("symmetric=own-from-16") != kOwn)
    GTEST_SKIP() << both.plugged.device().name() << " has no symmetric products of its own";
  both.there->choose(kOwn);
  for (const char* const name : {"torch", "gram", "deepspeed"})
    for (const Shape shape : {Shape{24, 40}, Shape{129, 70}, Shape{140, 150}}) {
      const MuonSpec spec = *preset(name);
      const Block block = Block::matrix(shape.rows, shape.cols);
      const auto u = gaussian(2 * block.span(), 7);
      const auto all = on_device(both, spec, block, u);
      const std::vector<float> one(u.begin(),
                                   u.begin() + static_cast<std::ptrdiff_t>(block.span()));
      const auto alone = on_device(both, spec, block, one);
      const std::string what = compose("{} {} x {}", name, shape.rows, shape.cols);
      EXPECT_TRUE(same_bits(alone, std::span(all).first(alone.size()))) << what;
      EXPECT_LE(relative_distance(alone, on_host(spec, block, one, *both.pool)),
                spec.precision == Precision::bf16 ? 0.05 : 0.01)
          << what;
    }
}

// Counted on the stub: both products of an iteration in standard form, X X^T and the square; of the
// Gram form those of a Gram matrix that is symmetric to the bit. From the rows on that were chosen,
// not in fp32.
TEST(CudaStubProducts, AreTheDevicesOwnWhereThatWasChosen) {
  Both both(0, 16);
  const auto own = [&](const MuonSpec& spec, Shape shape, std::uint32_t choice) {
    both.there->choose(choice);
    const std::uint64_t before = both.plugged.calls("symmetric_kernel");
    const Block block = Block::matrix(shape.rows, shape.cols);
    on_device(both, spec, block, gaussian(block.span(), 1));
    return both.plugged.calls("symmetric_kernel") - before;
  };
  const MuonSpec standard = *preset("torch"), gram = *preset("gram");
  const std::uint64_t iterations = standard.iterations.size();
  EXPECT_EQ(own(standard, {16, 24}, kOwn), 2 * iterations);
  EXPECT_EQ(own(standard, {24, 16}, kOwn), 2 * iterations);
  EXPECT_EQ(own(standard, {15, 24}, kOwn), 0u);
  EXPECT_EQ(own(standard, {16, 24}, kOwn - 1), 0u);
  EXPECT_EQ(own(standard, {16, 24}, 0), 0u);
  EXPECT_EQ(own(gram, {16, 64}, kOwn), 2 * (1 + gram.restarts.size()));
  EXPECT_EQ(own(MuonSpec::keller(), {16, 24}, kOwn),
            MuonSpec::keller().precision == Precision::fp32 ? 0u : 2 * iterations);
}

TEST(CudaStubProducts, AreChosenFromTheRowsOnAtWhichTheyMeasureFaster) {
  for (const auto& [faster_from, wanted] : {std::pair{1u, "own-from-512"},
                                            {512u, "own-from-512"},
                                            {600u, "own-from-1024"},
                                            {4096u, "own-from-4096"},
                                            {5000u, "library"},
                                            {0u, "library"}}) {
    Plugged plugged(0, faster_from);
    const auto found = plugged.accelerator().measure();
    ASSERT_TRUE(found) << found.error().message;
    EXPECT_EQ(found->note, "");
    const std::string text = plugged.accelerator().fingerprint(found->choice);
    EXPECT_TRUE(text.ends_with(compose(" symmetric={}", wanted))) << text;
    EXPECT_EQ(plugged.accelerator().choice_in(text), found->choice);
  }
}

// A kernel that is wrong on some device must not be used there, however fast; nor must a
// measurement that finds no memory stop a training.
TEST(CudaStubProducts, ThatAreWrongOrCannotBeMeasuredAreNotChosen) {
  Plugged plugged(0, 1);
  plugged.make_symmetric(1, true);
  auto found = plugged.accelerator().measure();
  ASSERT_TRUE(found);
  EXPECT_EQ(found->choice, 0u);
  EXPECT_NE(found->note.find("wrong at 4096 rows"), std::string::npos) << found->note;
  plugged.make_symmetric(1);
  plugged.fail("cudaMalloc");
  found = plugged.accelerator().measure();
  ASSERT_TRUE(found);
  EXPECT_EQ(found->choice, 0u);
  EXPECT_NE(found->note.find("no memory"), std::string::npos) << found->note;
  plugged.fail("symmetric_kernel");
  EXPECT_FALSE(plugged.accelerator().measure());
}

// What one device chose, as another may make it: that has none takes the library's.
TEST(CudaStubProducts, OfAStoreAreMadeAsTheDeviceCan) {
  const std::string text = "cuBLASLt 130101 Stub elementwise=ebb symmetric=own-from-2048";
  EXPECT_EQ(Plugged(0, 16).accelerator().choice_in(text), 2u);
  EXPECT_EQ(Plugged().accelerator().choice_in(text), 0u);
  EXPECT_EQ(Plugged().accelerator().choice_in("products=fma bf16=none elementwise=clones"),
            std::nullopt);
}

// What the library advises for a batch is another algorithm than for one matrix, and serves it
// where it is of the same family and gives the same bits.
TEST(CudaStubProducts, OfABatchAreByAnAlgorithmOfItsOwnUnlessThatChangesABit) {
  const MuonSpec spec = *preset("torch");
  const Block block = Block::matrix(24, 40);
  const auto u = gaussian(2 * block.span(), 3);
  for (const char* const other : {"", "batches as one", "batches alike"}) {
    const bool same = *other == '\0';
    Both both;
    if (!same) both.plugged.fail(other);
    const std::uint64_t before = both.plugged.calls(kByAnother);
    const auto two = on_device(both, spec, block, u);
    // X X^T, the square, X's next: one product each, and a sample of each before.
    const std::uint64_t samples = std::string_view(other) == "batches alike" ? 0 : 2 * 3;
    EXPECT_EQ(both.plugged.calls(kByAnother) - before,
              samples + (same ? 3 * spec.iterations.size() : 0));
    both.plugged.fail(nullptr);
    for (std::uint64_t i = 0; i < 2; ++i) {
      const auto first = u.begin() + static_cast<std::ptrdiff_t>(i * block.span());
      const auto alone =
          on_device(both, spec, block, {first, first + static_cast<std::ptrdiff_t>(block.span())});
      EXPECT_TRUE(same_bits(alone, std::span(two).subspan(i * block.span(), block.span())));
    }
  }
}

// Where there is no memory to look at a sample in, all have the algorithm of one.
TEST(CudaStubProducts, AreMadeWithoutASampleWhereThereIsNoMemoryForIt) {
  const MuonSpec spec = *preset("torch");
  const Block block = Block::matrix(24, 40);
  const auto u = gaussian(2 * block.span(), 3);
  Both both, bare;
  const auto wanted = on_device(both, spec, block, u);
  Floats there(bare.plugged.device(), u, DType::f32);
  const auto room =
      bare.plugged.device().allocate(bare.plugged.accelerator().workspace_bytes(spec, block, 2));
  ASSERT_TRUE(room);
  const std::uint64_t before = bare.plugged.calls(kByAnother);
  bare.plugged.fail("cudaMalloc");
  const Event done = bare.there->orthogonalize({&spec, block, 2, Bf16::emulated, there.buffer()},
                                               (*room).buffer(), {});
  EXPECT_TRUE(same_bits(there.back(done), wanted));
  EXPECT_EQ(bare.plugged.calls(kByAnother), before);
  bare.plugged.fail(nullptr);
}

// The same batch at the same place, again and again, of other numbers each time; at last one of
// another spec.
std::vector<std::vector<float>> again(Both& both, int times) {
  const MuonSpec usual = *preset("torch"), other = *preset("deepspeed");
  const Block block = Block::matrix(24, 40);
  Floats u(both.plugged.device(), std::vector<float>(2 * block.span()), DType::f32);
  const auto bytes = [&](const MuonSpec& spec) {
    return both.plugged.accelerator().workspace_bytes(spec, block, 2);
  };
  const auto room = both.plugged.device().allocate(std::max(bytes(usual), bytes(other)));
  EBB_CHECK(room.has_value());
  std::vector<std::vector<float>> all;
  for (int i = 0; i <= times; ++i) {
    const MuonSpec& spec = i < times ? usual : other;
    u.here = gaussian(u.here.size(), 20 + static_cast<std::uint32_t>(i));
    const Event there = libswap::copy(u.host(), u.buffer(), {});
    all.push_back(u.back(both.there->orthogonalize({&spec, block, 2, Bf16::emulated, u.buffer()},
                                                   (*room).buffer(), {&there, 1})));
  }
  return all;
}

std::vector<std::vector<float>> alone(Both& both, int times) {
  std::vector<std::vector<float>> all;
  const Block block = Block::matrix(24, 40);
  for (int i = 0; i <= times; ++i)
    all.push_back(on_device(both, *preset(i < times ? "torch" : "deepspeed"), block,
                            gaussian(2 * block.span(), 20 + static_cast<std::uint32_t>(i))));
  return all;
}

TEST(CudaKernels, OrthogonalizeTheSamePlaceAgainWithTheSameBits) {
  Both both;
  const std::uint64_t before = both.plugged.calls("cudaGraphLaunch");
  EXPECT_EQ(again(both, 4), alone(both, 4));
  // Of the stub; nothing is known of a device's. Not the first time.
  if (before != 0 || both.plugged.calls("cudaGraphLaunch") != 0) {
    EXPECT_GE(both.plugged.calls("cudaGraphLaunch") - before, 3u);
  }
}

TEST(CudaStubProducts, AreGivenPlainlyWhereADriverMakesNoGraph) {
  std::vector<std::vector<float>> wanted;
  {
    Both both;
    wanted = again(both, 4);
  }
  for (const char* const function :
       {"cudaStreamBeginCapture", "cudaStreamEndCapture", "cudaGraphInstantiate"}) {
    Both both;
    both.plugged.fail(function);
    EXPECT_EQ(again(both, 4), wanted) << function;
    EXPECT_TRUE(both.plugged.device().status()) << function;
  }
  for (const char* const function : {"cudaGraphLaunch", "load_kernel"}) {
    Both both;
    if (function == std::string("load_kernel"))
      both.plugged.fail(function, 1);  // the one that is captured
    else
      both.plugged.fail(function);
    again(both, 3);
    EXPECT_FALSE(both.plugged.device().status()) << function;
  }
}

}  // namespace
}  // namespace ebb::libmuon::products_tests
