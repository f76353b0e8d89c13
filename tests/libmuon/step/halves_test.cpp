// Masters in halves: the store has the low ones, the trainer's weights in bf16 are the high ones.
// All bits are those of masters in fp32, whatever happens, and weights are these rounded away from
// zero at ties.
#include <gtest/gtest.h>

#include "ebb/formats/registry.h"
#include "ebb/libswap/tree/file_tree.h"
#include "tests/libmuon/support/failing_world.h"
#include "tests/libmuon/support/in_halves.h"
#include "tests/libmuon/support/trained.h"
#include "tests/libmuon/support/training.h"

namespace ebb::test {
namespace {

using libmuon::Communicator;
using libmuon::HandIn;
using libmuon::Placement;

void expect_the_bits_of_fp32(const Training& plain, const std::string& what) {
  Training setup = in_halves(plain);
  for (const Placement placement : kPlacements) {
    setup.placement = placement;
    const Trained trained = train_in_two(setup, kSteps);
    EXPECT_TRUE(trained.stored == reference(kSteps)) << what;
    EXPECT_EQ(trained.outcome.weights, handed_out(setup, reference(kSteps))) << what;
  }
}

TEST(Halves, GiveTheBitsOfMastersInFp32InAnyLayout) {
  struct Layouts {
    Policy gradients, weights;
  };
  for (const auto& [gradients, weights] :
       {Layouts{Policy::zero12, Policy::replicated}, Layouts{Policy::zero3, Policy::zero3},
        Layouts{Policy::rows, Policy::rows}, Layouts{Policy::uneven_rows, Policy::zero12},
        Layouts{Policy::replicated, Policy::layer_wise},
        Layouts{Policy::zero3, Policy::replicated}})
    for (const std::uint32_t ranks : {1u, 2u, 3u, 4u})
      for (const std::uint64_t chunk : {1u, 5000u, 1u << 28}) {
        const Variant variant{ranks, gradients, weights, chunk};
        expect_the_bits_of_fp32(training_of(variant), text_of(variant));
      }
}

TEST(Halves, GiveTheBitsOfMastersInFp32HoweverGradientsComeAndMomentumIsKept) {
  for (const Policy weights : {Policy::replicated, Policy::zero3})
    for (const std::uint64_t chunk : {5000u, 1u << 28})
      for (const HandIn hand_in : {HandIn::added, HandIn::partial})
        expect_the_bits_of_fp32(
            {.ranks = 2, .weights = weights, .chunk_bytes = chunk, .hand_in = hand_in},
            compose("weights {}, chunks of {}", name_of(weights), chunk));
  // Of other momenta the masters are others: those of masters in fp32 beside them.
  for (const DType dtype : {DType::bf16, DType::i8}) {
    Training whole = in_halves({.ranks = 2, .weights = Policy::zero3});
    whole.dtypes = {{"momentum_buffer", dtype}};
    Training halves = whole;
    halves.dtypes.insert(kHalves.begin(), kHalves.end());
    const TempDir one, other;
    EXPECT_EQ(train(whole, one.path(), kSteps).error, "");
    EXPECT_EQ(train(halves, other.path(), kSteps).error, "");
    EXPECT_TRUE(tensors_of(one.path()) == tensors_of(other.path())) << name_of(dtype);
  }
}

// Sums of gradients have places of their own where they are kept.
TEST(Halves, GiveTheBitsOfMastersInFp32BesideSumsOfGradients) {
  for (const auto sums : {libmuon::PartialSums::kept, libmuon::PartialSums::made_twice}) {
    Training setup = in_halves(
        {.ranks = 2, .weights = Policy::zero3, .chunk_bytes = 5000, .hand_in = HandIn::partial});
    auto config = config_of(setup, setup.model);
    config.partial_sums = sums;
    add_what_tiles_need_beside(config);
    FailingWorld world;
    expect_well(world.world.run([&](Communicator& ranks) -> Result<> {
      EBB_TRY_ASSIGN(auto rank, RankEngine::open(world.world, ranks, config));
      EBB_TRY(step_to(rank, kSteps));
      if (ranks.rank() == Rank{0}) {
        EXPECT_EQ(rank.flat_weights(), handed_out(setup, reference(kSteps)));
      }
      return {};
    }));
  }
}

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

TEST(Halves, AreTransferredFromWholeMastersAndBackOnOtherRanks) {
  Training halves = in_halves({.ranks = 2, .weights = Policy::zero3}), whole = halves;
  whole.dtypes = {};
  const TempDir directory;
  ASSERT_EQ(train(whole, directory.path(), 1).error, "");
  EXPECT_EQ(train(halves, directory.path(), 2).origin,
            "transferred the store of 2 ranks at step 1 (master is U16, was F32)");
  halves.ranks = whole.ranks = 3;
  EXPECT_EQ(train(halves, directory.path(), 3).origin,
            "transferred the store of 2 ranks at step 2");
  halves.ranks = whole.ranks = 1;
  EXPECT_EQ(train(whole, directory.path(), 4).origin,
            "transferred the store of 3 ranks at step 3 (master is F32, was U16)");
  EXPECT_TRUE(tensors_of(directory.path()) == reference(4));
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
