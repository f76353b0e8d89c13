// Masters in halves: the store has the low ones, the trainer's weights in bf16 are the high ones.
// What snapshots and readers have of them, and what they take. That their bits are those of masters
// in fp32 is for covering_test.cpp.
#include <gtest/gtest.h>

#include "ebb/formats/registry.h"
#include "ebb/libswap/tree/file_tree.h"
#include "tests/libmuon/support/in_halves.h"
#include "tests/libmuon/support/training.h"
#include "tests/libmuon/support/world.h"

namespace ebb::test {
namespace {

using libmuon::Placement;

// The last generation of a run that went on and then just stopped.
TEST(Halves, ASnapshotHoldsTheHighOnesWhileTrainingGoesOn) {
  for (const Policy weights : {Policy::replicated, Policy::zero3, Policy::rows})
    for (const Placement placement : kPlacements)
      for (const std::uint64_t tiles : {1u, 12u, 1000u}) {
        const Training setup = in_halves({.ranks = 2,
                                          .weights = weights,
                                          .placement = placement,
                                          .chunk_bytes = 5000,
                                          .budget_bytes = tiles * 4096,
                                          .slots = tiles == 12 ? 3u : 2u,
                                          .snapshot_every = 2});
        const TempDir directory;
        ASSERT_EQ(train(setup, directory.path(), 5, Finish::just_stop).error, "");
        auto tree = libswap::open_tree(directory.path());
        ASSERT_TRUE(tree);
        const auto checkpoint = formats::describe(std::move(*tree));
        ASSERT_TRUE(checkpoint) << checkpoint.error().message;
        const auto step = static_cast<std::uint64_t>(*(*checkpoint)->catalog().step);
        EXPECT_TRUE(step == 2 || step == 4) << step;
        EXPECT_TRUE(tensors_of(**checkpoint) == reference(step));
      }
}

TEST(Halves, ReadersSeeFp32AndNoHalves) {
  const TempDir directory;
  ASSERT_EQ(train(in_halves({.ranks = 3}), directory.path(), 2).error, "");
  auto tree = libswap::open_tree(directory.path());
  ASSERT_TRUE(tree);
  const auto checkpoint = formats::describe(std::move(*tree));
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  const auto covered = formats::prove_coverage((*checkpoint)->catalog());
  EXPECT_TRUE(covered) << covered.error().message;
  std::size_t masters = 0;
  for (const TensorEntry& tensor : (*checkpoint)->catalog().tensors) {
    EXPECT_EQ(tensor.dtype, DType::f32) << tensor.name;
    EXPECT_NE(tensor.state, "param");
    const bool master = tensor.state == "master";
    EXPECT_EQ(tensor.stored, master ? std::optional(DType::u16) : std::nullopt);
    masters += master;
    for (const Chunk& chunk : tensor.chunks) {  // from any byte on, as many as one likes
      ByteVector whole(formats::volume(chunk.box.extent) * sizeof(float)), pieces(whole.size());
      EXPECT_TRUE((*checkpoint)->read(tensor, chunk, 0, whole));
      for (std::size_t at = 0; at < pieces.size(); at += 1021)
        EXPECT_TRUE((*checkpoint)
                        ->read(tensor, chunk, at,
                               std::span(pieces).subspan(
                                   at, std::min<std::size_t>(1021, pieces.size() - at))));
      EXPECT_EQ(whole, pieces);
    }
  }
  EXPECT_EQ(masters, model_in_halves().params.size());
}

// --- bytes ---

TEST(Halves, TakeTwoBytesOfAParameterLessInAStepAndMoveWhatIsPredicted) {
  struct Case {
    libmuon::GroupSpec group;
    libmuon::StateDTypes dtypes;
    std::uint64_t state, whole;  // bytes of a parameter
  };
  const libmuon::StateDTypes half = {{"momentum_buffer", DType::bf16}};
  for (const auto& [group, dtypes, state, whole] :
       {Case{libmuon::MuonSpec::keller(), {}, 6, 8}, Case{libmuon::MuonSpec::keller(), half, 4, 6},
        Case{libmuon::AdamSpec{}, {}, 10, 12}}) {
    Training setup{.budget_bytes = 1 * 4096, .dtypes = dtypes};
    setup.model.groups = {group};
    setup.model.params = {{.name = "a", .shape = {128, 64}, .weight = DType::bf16}};
    const auto run = [&](const libmuon::StateDTypes& masters) {
      Training one = setup;
      one.dtypes.insert(masters.begin(), masters.end());
      const TempDir directory;
      const Outcome outcome = train(one, directory.path(), 3, Finish::snapshot);
      EXPECT_EQ(outcome.error, "");
      const auto& plan = outcome.plans[0];
      const auto& stats = outcome.stats[0];
      EXPECT_EQ(stats.read_bytes, 3 * plan.step_read_bytes + plan.install_read_bytes);
      EXPECT_EQ(stats.written_bytes, 4 * plan.step_written_bytes + 2 * plan.snapshot_written_bytes)
          << "the first time when the store was made";
      return plan;
    };
    const auto halves = run(kHalves), plain = run({});
    EXPECT_EQ(halves.state_bytes, 8192 * state);
    EXPECT_EQ(plain.state_bytes, 8192 * whole);
    EXPECT_EQ(halves.snapshot_written_bytes, 2 * 8192);
    EXPECT_EQ(halves.install_read_bytes, 2 * 8192);
    EXPECT_EQ(plain.snapshot_written_bytes, 0);
    if (std::holds_alternative<libmuon::MuonSpec>(group)) {
      EXPECT_EQ(halves.step_read_bytes + halves.step_written_bytes, 2 * 8192 * state);
      EXPECT_EQ(plain.step_read_bytes + plain.step_written_bytes, 2 * 8192 * whole);
    }
  }
}

TEST(Halves, SendWhatIsPredicted) {
  for (const Policy weights : {Policy::replicated, Policy::zero3, Policy::layer_wise})
    for (const Placement placement : kPlacements) {
      Training halves = in_halves({.ranks = 3,
                                   .weights = weights,
                                   .placement = placement,
                                   .chunk_bytes = 5000,
                                   .snapshot_every = 1});
      Training whole = halves;
      whole.dtypes = {};
      const TempDir one, other;
      const Outcome sent = train(halves, one.path(), kSteps, Finish::just_stop);
      const Outcome plain = train(whole, other.path(), kSteps, Finish::just_stop);
      ASSERT_EQ(sent.error, "");
      ASSERT_EQ(plain.error, "");
      std::uint64_t all = 0;
      for (std::uint32_t rank = 0; rank < 3; ++rank) {
        const std::uint64_t highs = sent.plans[rank].snapshot_sent_bytes;
        EXPECT_EQ(sent.plans[rank].step_sent_bytes, plain.plans[rank].step_sent_bytes + highs);
        const std::uint64_t more = sent.stats[rank].sent_bytes - plain.stats[rank].sent_bytes;
        EXPECT_GE(more, kSteps * highs + highs) << "at least one snapshot was not put off";
        EXPECT_LE(more, kSteps * highs + kSteps * highs);
        all += highs;
      }
      // By element: whoever has the weight, and whoever has the state.
      const auto config = config_of(halves, halves.model);
      std::uint64_t apart = 0;
      for (std::uint32_t rank = 0; rank < 3; ++rank) {
        const auto plan = libmuon::StatePlan::make(config.model, config.partition, 4096, Rank{rank},
                                                   config.chunk_bytes, config.dtypes);
        for (std::uint32_t param = 0; param < halves.model.params.size(); ++param)
          for (const FlatRange own : (*plan).own_ranges(param)) {
            std::uint64_t here = 0;
            for (const FlatRange held : (*plan).weights().runs(param, Rank{rank}))
              here += formats::overlap(own, held).count;
            apart += own.count - here;
          }
      }
      EXPECT_EQ(all, 2 * apart) << name_of(weights);
      EXPECT_EQ(all == 0, weights == Policy::replicated);
    }
}

}  // namespace
}  // namespace ebb::test
