// Masters that the trainer's weights are, in fp32, or whose high halves they are, in bf16: what
// snapshots and readers have of them, and what they take. That their bits are those of masters that
// are kept in fp32 is for covering_test.cpp.
#include <gtest/gtest.h>

#include "ebb/formats/describe.h"
#include "ebb/libswap/tree/file_tree.h"
#include "tests/libmuon/support/bound_masters.h"
#include "tests/libmuon/support/late_accelerator.h"
#include "tests/libmuon/support/training.h"
#include "tests/libmuon/support/world.h"

namespace ebb::test {
namespace {

using libmuon::Masters;
using libmuon::Placement;

// The last generation of a run that went on and then just stopped.
void expect_whole_snapshots(const Training& setup) {
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

TEST(BoundMasters, ASnapshotHoldsThemWhileTrainingGoesOn) {
  for (const Masters masters : kBoundMasters)
    for (const Policy weights : {Policy::replicated, Policy::zero3, Policy::rows})
      for (const Placement placement : kPlacements)
        for (const std::uint64_t tiles : {1u, 12u, 1000u})
          expect_whole_snapshots(bound(masters, {.ranks = 2,
                                                 .weights = weights,
                                                 .placement = placement,
                                                 .chunk_bytes = 5000,
                                                 .budget_bytes = tiles * 4096,
                                                 .slots = tiles == 12 ? 3u : 2u,
                                                 .snapshot_every = 2}));
}

// Copies from the device come late: what is staged of a chunk stays until they are done.
TEST(BoundMasters, ASnapshotHoldsThemThoughTheDeviceIsLate) {
  for (const std::uint32_t delay_us : {200u, 2000u}) {
    SCOPED_TRACE(delay_us);
    LateAccelerator accelerator(delay_us, delay_us);
    expect_whole_snapshots(bound(Masters::bound, {.ranks = 3,
                                                  .gradients = Policy::zero3,
                                                  .weights = Policy::zero3,
                                                  .chunk_bytes = 1,
                                                  .budget_bytes = 12 * 4096,
                                                  .slots = 2,
                                                  .snapshot_every = 2,
                                                  .accelerator = &accelerator,
                                                  .weights_on = libmuon::Side::device}));
  }
}

TEST(BoundMasters, ReadersSeeFp32AndNoHalves) {
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

TEST(BoundMasters, TakeTheirBytesLessInAStepAndMoveWhatIsPredicted) {
  struct Case {
    libmuon::GroupSpec group;
    libmuon::StateDTypes dtypes;
    std::uint64_t state;  // bytes of a parameter without its master
  };
  const libmuon::StateDTypes half = {{"momentum_buffer", DType::bf16}};
  for (const auto& [group, dtypes, state] :
       {Case{libmuon::MuonSpec::keller(), {}, 4}, Case{libmuon::MuonSpec::keller(), half, 2},
        Case{libmuon::AdamSpec{}, {}, 8}}) {
    Training setup{.budget_bytes = 1 * 4096, .dtypes = dtypes};
    setup.model.groups = {group};
    const auto run = [&](const libmuon::StateDTypes& masters, DType weight) {
      Training one = setup;
      one.model.params = {{.name = "a", .shape = {128, 64}, .weight = weight}};
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
    const bool muon = std::holds_alternative<libmuon::MuonSpec>(group);
    const auto expect = [&](const libmuon::EnginePlan& plan, std::uint64_t kept,
                            std::uint64_t bound) {
      EXPECT_EQ(plan.state_bytes, 8192 * (state + kept));
      EXPECT_EQ(plan.snapshot_written_bytes, bound * 8192);
      if (bound > 0) {
        EXPECT_EQ(plan.install_read_bytes, bound * 8192);
      }
      if (muon) {  // tiles of AdamW are not full
        EXPECT_EQ(plan.step_read_bytes + plan.step_written_bytes, 2 * plan.state_bytes);
      }
    };
    expect(run({}, DType::bf16), 4, 0);
    expect(run(kHalves, DType::bf16), 2, 2);
    expect(run(kWeightsAreMasters, DType::f32), 0, 4);
  }
}

// By element: whoever has the weight, and whoever has the state.
std::uint64_t elements_apart(const Training& setup) {
  const auto config = config_of(setup, setup.model);
  std::uint64_t apart = 0;
  for (std::uint32_t rank = 0; rank < setup.ranks; ++rank) {
    const auto plan = libmuon::StatePlan::make(config.model, config.partition, 4096, Rank{rank},
                                               config.chunk_bytes, config.dtypes);
    for (std::uint32_t param = 0; param < setup.model.params.size(); ++param)
      for (const FlatRange own : (*plan).own_ranges(param)) {
        std::uint64_t here = 0;
        for (const FlatRange held : (*plan).weights().runs(param, Rank{rank}))
          here += formats::overlap(own, held).count;
        apart += own.count - here;
      }
  }
  return apart;
}

TEST(BoundMasters, SendWhatIsPredicted) {
  for (const Masters masters : kBoundMasters)
    for (const Policy weights : {Policy::replicated, Policy::zero3, Policy::layer_wise})
      for (const Placement placement : kPlacements) {
        const Training setup = bound(masters, {.ranks = 3,
                                               .weights = weights,
                                               .placement = placement,
                                               .chunk_bytes = 5000,
                                               .snapshot_every = 1});
        Training kept = setup;
        kept.dtypes = {};
        const TempDir one, other;
        const Outcome sent = train(setup, one.path(), kSteps, Finish::just_stop);
        const Outcome plain = train(kept, other.path(), kSteps, Finish::just_stop);
        ASSERT_EQ(sent.error, "");
        ASSERT_EQ(plain.error, "");
        std::uint64_t all = 0;
        for (std::uint32_t rank = 0; rank < 3; ++rank) {
          const std::uint64_t once = sent.plans[rank].snapshot_sent_bytes;
          EXPECT_EQ(sent.plans[rank].step_sent_bytes, plain.plans[rank].step_sent_bytes + once);
          const std::uint64_t more = sent.stats[rank].sent_bytes - plain.stats[rank].sent_bytes;
          EXPECT_GE(more, kSteps * once + once) << "at least one snapshot was not put off";
          EXPECT_LE(more, kSteps * once + kSteps * once);
          all += once;
        }
        const std::uint64_t bytes = masters == Masters::halves ? 2 : 4;
        EXPECT_EQ(all, bytes * elements_apart(setup)) << name_of(weights);
        EXPECT_EQ(all == 0, weights == Policy::replicated);
      }
}

}  // namespace
}  // namespace ebb::test
