// Momentum in blocks of int8: the same bits whatever the partition and the way they came, those
// that arithmetic written out here gives, and what other programs see of it.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "ebb/formats/core/int8_blocks.h"
#include "ebb/formats/describe.h"
#include "ebb/libmuon/kernels/kernels.h"
#include "ebb/libmuon/spec/presets.h"
#include "ebb/libswap/tree/file_tree.h"
#include "tests/libmuon/support/late_accelerator.h"
#include "tests/libmuon/support/trained.h"
#include "tests/libmuon/support/world.h"

namespace ebb::test {
namespace {

using libmuon::MuonSpec;

constexpr std::uint64_t kSteps = 4;
const libmuon::StateDTypes kInt8 = {{"momentum_buffer", DType::i8}};

// With a matrix of several tiles, a stack whose matrices are whole blocks and one whose are not,
// and parts of rows that are not; with second moments and with decay in the gradient.
libmuon::ModelSpec model_with_blocks() {
  libmuon::ModelSpec model = nuisance_model();
  MuonSpec split = MuonSpec::keller();
  split.split = {libmuon::Split::Kind::rows, {5, 2}};
  MuonSpec normalised = MuonSpec::keller();
  normalised.second_moment = libmuon::SecondMoment::rows;
  MuonSpec decayed = MuonSpec::keller();
  decayed.decay = libmuon::Decay::l2;
  decayed.weight_decay = 0.1;
  for (const MuonSpec& spec : {split, normalised, decayed}) model.groups.push_back(spec);
  model.params.push_back({"big", {80, 100}, 0});
  model.params.push_back({"experts", {4, 16, 48}, 0});
  model.params.push_back({"odd", {3, 9, 11}, 0});
  model.params.push_back({"parts", {7, 60}, 2});
  model.params.push_back({"normalised", {3, 16, 48}, 3});
  model.params.push_back({"decayed", {20, 31}, 4});
  return model;
}

using Stored = std::map<std::string, std::vector<float>>;

Training with(Training setup) {
  setup.dtypes = kInt8;
  setup.model = model_with_blocks();
  return setup;
}

std::unique_ptr<Checkpoint> described(const std::filesystem::path& directory) {
  auto tree = libswap::open_tree(directory);
  EXPECT_TRUE(tree);
  if (!tree) return nullptr;
  auto checkpoint = formats::describe(std::move(*tree));
  EXPECT_TRUE(checkpoint) << checkpoint.error().message;
  return checkpoint ? std::move(*checkpoint) : nullptr;
}

// Of matrices that every shard cuts between two blocks; those of the last stack share blocks.
TEST(Int8, GivesTheSameBitsOnShardsThatBeginWithABlock) {
  MuonSpec stack = MuonSpec::keller(), split = MuonSpec::keller();
  stack.dims = libmuon::Dims::stack;
  split.split = {libmuon::Split::Kind::rows, {10, 6}};
  libmuon::ModelSpec model;
  model.groups = {stack, split, libmuon::AdamSpec{}, *libmuon::preset("torch")};
  model.params = {{"big", {96, 128}, 0},   {"norm", {24}, 2},         {"experts", {4, 16, 48}, 0},
                  {"parts", {16, 192}, 1}, {"rounded", {96, 128}, 3}, {"odd", {16, 3, 64}, 0}};
  const auto in_two = [&](Training setup) {
    setup.model = model;
    setup.dtypes = kInt8;
    return train_in_two(setup, kSteps);
  };
  const Trained wanted = in_two({});
  std::uint64_t number = 0;
  for (const auto& [ranks, policy] : {std::pair{1u, Policy::zero12},
                                      {2u, Policy::zero3},
                                      {3u, Policy::zero3},
                                      {4u, Policy::zero3},
                                      {2u, Policy::rows},
                                      {3u, Policy::layer_wise},
                                      {2u, Policy::replicated}})
    for (const std::uint64_t chunk : {1u, 20000u, 1u << 28}) {
      LateAccelerator accelerator(++number, 50);
      const Trained trained = in_two({.ranks = ranks,
                                      .gradients = policy,
                                      .placement = libmuon::Placement::shard,
                                      .tile_bytes = number % 2 == 0 ? 4096u : 16384u,
                                      .chunk_bytes = chunk,
                                      .budget_bytes = 3 * 16384,
                                      .threads = 1 + ranks % 2,
                                      .accelerator = number % 4 == 0 ? &accelerator : nullptr});
      const auto what = compose("{} on {} ranks, chunks of {}", name_of(policy), ranks, chunk);
      EXPECT_TRUE(trained == wanted) << what;
    }
}

// A block of 256 numbers by arithmetic in fp64: the largest becomes 127, its scale has 17 bits.
void round_to_int8(std::span<float> block) {
  float largest = 0;
  for (const float value : block) largest = std::max(largest, std::abs(value));
  const double unit = std::ldexp(1.0, std::ilogb(largest / 127) - 16);
  const double scale = std::ceil(static_cast<double>(largest / 127) / unit) * unit;
  for (float& value : block)
    value = static_cast<float>(std::nearbyint(static_cast<double>(value) / scale) * scale);
}

// Momentum, U and the weights of one matrix, written out; Newton-Schulz alone is the library's.
TEST(Int8, IsRoundedOnceAStepByBlocksOfTheMatrixAndTheUpdateIsMadeOfIt) {
  MuonSpec sum = MuonSpec::keller();
  sum.momentum = libmuon::Momentum::sum;
  MuonSpec plain = MuonSpec::keller();
  plain.nesterov = false;
  for (const MuonSpec& spec : {MuonSpec::keller(), sum, plain}) {
    libmuon::ModelSpec model;
    model.groups = {spec};
    model.params = {{"only", {20, 31}, 0}};  // two blocks and a part of one
    const TempDir directory;
    const Outcome outcome =
        train({.ranks = 2, .dtypes = kInt8, .model = model}, directory.path(), kSteps);
    ASSERT_EQ(outcome.error, "");
    const auto beta = static_cast<float>(spec.beta), blend = static_cast<float>(1 - spec.beta);
    std::vector<float> m(620), u(620), w(620);
    noisy_weights(0, {0, 620}, w);
    const bool ema = spec.momentum == libmuon::Momentum::ema;
    for (std::uint64_t step = 1; step <= kSteps; ++step) {
      for (std::uint64_t i = 0; i < m.size(); ++i) {
        const float g = noise(0, step, i);
        m[i] = ema ? m[i] + blend * (g - m[i]) : beta * m[i] + g;
      }
      for (std::size_t first = 0; first < m.size(); first += 256)
        round_to_int8(std::span(m).subspan(first, std::min<std::size_t>(256, m.size() - first)));
      for (std::uint64_t i = 0; i < m.size(); ++i) {
        const float g = noise(0, step, i);
        const float blended = ema ? m[i] + blend * (g - m[i]) : g + beta * m[i];
        u[i] = spec.nesterov ? blended : m[i];
      }
      libswap::Pool alone;
      libmuon::orthogonalize(spec, libmuon::Bf16::emulated, libmuon::Block::matrix(20, 31), u,
                             alone);
      const auto rate = static_cast<float>(spec.lr);
      for (std::size_t i = 0; i < w.size(); ++i) w[i] = w[i] - (0 * w[i] + rate * u[i]);
    }
    EXPECT_EQ(tensors_of(directory.path()).at("only momentum_buffer"), m);
    EXPECT_EQ(outcome.weights, w);
  }
}

TEST(Int8, MovesExactlyThePredictedBytes) {
  libmuon::ModelSpec model;
  model.groups = {MuonSpec::keller()};
  model.params = {{"a", {60, 64}, 0}, {"b", {120, 64}, 0}};  // 15 and 30 blocks: full tiles
  const auto run = [&](const libmuon::StateDTypes& dtypes) {
    const TempDir directory;
    Outcome outcome = train({.budget_bytes = 1 * 4096, .dtypes = dtypes, .model = model},
                            directory.path(), kSteps, Finish::just_stop);
    EXPECT_EQ(outcome.error, "");
    const auto& plan = outcome.plans[0];
    EXPECT_EQ(outcome.stats[0].read_bytes, kSteps * plan.step_read_bytes + plan.install_read_bytes);
    EXPECT_EQ(outcome.stats[0].written_bytes, (kSteps + 1) * plan.step_written_bytes)
        << "the first time when the store was made";
    return outcome;
  };
  const Outcome outcome = run(kInt8);
  EXPECT_EQ(outcome.plans[0].state_bytes, 45 * 256 * 4 + 45 * (256 + 4)) << "masters and momentum";
  EXPECT_EQ(outcome.plans[0].step_read_bytes, (12 + 3) * 4096u);
  EXPECT_EQ(run({}).plans[0].step_read_bytes, (12 + 12) * 4096u);
}

TEST(Int8, ReadersSeeFp32AndNoScales) {
  const TempDir directory;
  ASSERT_EQ(train(with({.ranks = 3}), directory.path(), 2).error, "");
  const auto checkpoint = described(directory.path());
  ASSERT_NE(checkpoint, nullptr);
  const auto covered = formats::prove_coverage(checkpoint->catalog());
  EXPECT_TRUE(covered) << covered.error().message;
  std::size_t in_int8 = 0;
  for (const TensorEntry& tensor : checkpoint->catalog().tensors) {
    EXPECT_EQ(tensor.dtype, DType::f32) << tensor.name;
    EXPECT_EQ(tensor.state.find(".scale"), std::string::npos);
    const bool momentum = tensor.state == "momentum_buffer";
    EXPECT_EQ(tensor.stored, momentum ? std::optional(DType::i8) : std::nullopt);
    in_int8 += momentum;
    for (const Chunk& chunk : tensor.chunks) {  // from any byte on, as many as one likes
      ByteVector whole(formats::volume(chunk.box.extent) * sizeof(float)), pieces(whole.size());
      EXPECT_TRUE(checkpoint->read(tensor, chunk, 0, whole));
      for (std::size_t at = 0; at < pieces.size(); at += 1021)
        EXPECT_TRUE(checkpoint->read(
            tensor, chunk, at,
            std::span(pieces).subspan(at, std::min<std::size_t>(1021, pieces.size() - at))));
      EXPECT_EQ(whole, pieces);
    }
  }
  EXPECT_EQ(in_int8, 12u);
}

TEST(Int8, AStoreOfAnotherDtypeIsTransferredRoundedOnceAndWidenedExactly) {
  const Training int8 = with({.ranks = 2});
  Training full = int8, half = int8;
  full.dtypes = {};
  half.dtypes = {{"momentum_buffer", DType::bf16}};
  const TempDir directory;
  ASSERT_EQ(train(full, directory.path(), 3).error, "");
  Stored wanted = tensors_of(directory.path());
  const std::string transferred = "transferred the store of 2 ranks at step 3";
  EXPECT_EQ(train(int8, directory.path(), 3).origin,
            transferred + " (momentum_buffer is I8, was F32)");
  const Stored rounded = tensors_of(directory.path());
  for (auto& [what, values] : wanted) {
    if (!what.ends_with(" momentum_buffer")) continue;
    for (std::size_t first = 0; first < values.size(); first += 256)
      round_to_int8(
          std::span(values).subspan(first, std::min<std::size_t>(256, values.size() - first)));
  }
  EXPECT_TRUE(rounded == wanted);
  EXPECT_EQ(train(int8, directory.path(), 3).origin, "resumed the store at step 3");
  EXPECT_EQ(train(full, directory.path(), 3).origin,
            transferred + " (momentum_buffer is F32, was I8)");
  EXPECT_TRUE(tensors_of(directory.path()) == rounded) << "exactly";
  EXPECT_EQ(train(half, directory.path(), 3).origin,
            transferred + " (momentum_buffer is BF16, was F32)");
  EXPECT_EQ(train(int8, directory.path(), 3).origin,
            transferred + " (momentum_buffer is I8, was BF16)");
}

class WithoutInt8 : public LateAccelerator {
 public:
  using LateAccelerator::LateAccelerator;
  bool takes_momentum_in(DType dtype) const override {
    return libmuon::Accelerator::takes_momentum_in(dtype);
  }
};

TEST(Int8, IsRefusedOnADeviceThatDoesNotTakeIt) {
  WithoutInt8 accelerator(1, 50);
  const TempDir directory;
  const Outcome outcome =
      train(with({.ranks = 2, .accelerator = &accelerator}), directory.path(), kSteps);
  EXPECT_NE(outcome.error.find(" does not take momentum_buffer as I8"), std::string::npos)
      << outcome.error;
}

// A checkpoint whose one momentum begins with an infinity.
class Infinite : public Checkpoint {
 public:
  explicit Infinite(std::unique_ptr<Checkpoint> finite) : finite_(std::move(finite)) {}
  const Catalog& catalog() const override { return finite_->catalog(); }

 private:
  Result<> read_chunk(const TensorEntry& tensor, const Chunk& chunk, std::uint64_t first,
                      std::span<std::byte> into) const override {
    EBB_TRY(finite_->read(tensor, chunk, first, into));
    const float infinity = std::numeric_limits<float>::infinity();
    if (tensor.name == "big" && tensor.state == "momentum_buffer" && first == 0)
      std::ranges::copy(std::as_bytes(std::span(&infinity, 1)), into.begin());
    return {};
  }
  std::unique_ptr<Checkpoint> finite_;
};

TEST(Int8, MomentumThatIsNotFiniteIsRefusedByName) {
  const TempDir source, loaded;
  Training full = with({});
  full.dtypes = {};
  ASSERT_EQ(train(full, source.path(), 2).error, "");
  const Infinite checkpoint(described(source.path()));
  const Outcome outcome =
      train(with({.ranks = 2}), loaded.path(), kSteps, Finish::snapshot, &checkpoint);
  EXPECT_NE(outcome.error.find("momentum_buffer.big is not finite: int8 cannot hold it"),
            std::string::npos)
      << outcome.error;
}

}  // namespace
}  // namespace ebb::test
