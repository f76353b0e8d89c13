// Matrices whose update is never whole in memory: the bits of those whose update is, whatever
// happens.
#include <gtest/gtest.h>

#include "ebb/libmuon/spec/presets.h"
#include "tests/libmuon/support/failing_world.h"
#include "tests/libmuon/support/trained.h"
#include "tests/libmuon/support/training.h"

namespace ebb::test::streamed_tests {
namespace {

using libmuon::Communicator;
using libmuon::MuonSpec;
using libmuon::Precision;

constexpr std::uint64_t kSteps = 4;

MuonSpec gram_of(Precision precision, std::vector<std::uint32_t> restarts) {
  MuonSpec spec = *libmuon::preset("gram");
  spec.precision = precision;
  spec.restarts = std::move(restarts);
  return spec;
}

// What is streamed beside what is not: tall matrices of several panels, one of a bit more than one,
// a stack; wide ones whose rows are longer than a tile, and shorter; square ones, AdamW's.
libmuon::ModelSpec model_to_stream() {
  libmuon::ModelSpec model = nuisance_model();
  const auto group = static_cast<std::uint32_t>(model.groups.size());
  model.groups.push_back(gram_of(Precision::fp32, {}));
  model.groups.push_back(gram_of(Precision::bf16, {2}));
  model.groups.push_back(gram_of(Precision::fp16, {1, 3}));
  model.groups.push_back(gram_of(Precision::tf32, {2}));
  model.params.push_back({"tall", {2600, 11}, group});
  model.params.push_back({"wide", {5, 2600}, group});
  model.params.push_back({"stack", {2, 1100, 7}, group + 1});
  model.params.push_back({"square", {60, 60}, group + 1});
  model.params.push_back({"taller", {530, 5}, group + 2});
  model.params.push_back({"wider", {4, 1024}, group + 1});
  model.params.push_back({"short", {9, 600}, group + 2});
  model.params.push_back({"tf32", {1100, 6}, group + 3});
  return model;
}

Training to_stream(Training setup) {
  setup.model = model_to_stream();
  return setup;
}

struct Held {
  std::vector<float> weights;
  std::map<std::string, std::vector<float>> stored;
  bool operator==(const Held&) const = default;
};

Held trained_alone(Training setup) {
  setup.ranks = 1;
  setup.stream_above_bytes = libmuon::kNothingStreamed;
  const TempDir directory;
  const Outcome outcome = train(setup, directory.path(), kSteps);
  EXPECT_EQ(outcome.error, "");
  return {outcome.weights, tensors_of(directory.path())};
}

void expect_the_bits(const Training& setup, const Held& wanted, const std::string& what) {
  const Trained trained = train_in_two(setup, kSteps);
  EXPECT_EQ(trained.outcome.error, "") << what;
  EXPECT_TRUE(trained.stored == wanted.stored) << what;
  if (setup.weights == Policy::replicated) {
    EXPECT_TRUE(trained.outcome.weights == wanted.weights) << what;
  }
  std::uint64_t streamed = 0;
  for (const auto& plan : trained.outcome.plans) streamed += plan.streamed_matrices;
  EXPECT_GT(streamed, 0u) << what;
}

// Matrices of every kind beside each other, whose tiles hold from a part of a strip to 64 of one:
// a tile of 256 KiB holds 64 strips of two rows, and all of most of these matrices.
libmuon::ModelSpec model_of_all_kinds() {
  libmuon::ModelSpec model;
  model.groups = {gram_of(Precision::fp32, {}), gram_of(Precision::bf16, {2}),
                  libmuon::AdamSpec{.lr = 1e-2}};
  model.params = {{"tall", {2600, 11}, 0},  {"wide", {12, 1280}, 0},  {"odd", {7, 1031}, 1},
                  {"thin", {3000, 1}, 0},   {"flat", {1, 3000}, 1},   {"square", {60, 60}, 0},
                  {"wider", {2, 4608}, 1},  {"bias", {3000}, 2},      {"stack", {2, 3, 2560}, 0},
                  {"broad", {33, 2048}, 0}, {"taller", {5200, 2}, 1}, {"last", {12, 1100}, 0}};
  return model;
}

// With momentum in fp32 all of both; in fewer bits each tile, with one of what is streamed.
TEST(StreamedSteps, HaveTheBitsOfWholeUpdatesHoweverManyStripsOrPanelsATileHolds) {
  std::uint32_t other = 0;
  for (const DType dtype : {DType::f32, DType::bf16, DType::i8}) {
    Training setup{.dtypes = {{"momentum_buffer", dtype}}, .model = model_of_all_kinds()};
    const Held wanted = trained_alone(setup);
    std::uint32_t drawn = 0;
    for (const std::uint64_t pages : {1u, 2u, 3u, 5u, 6u, 7u, 11u, 13u, 16u, 24u, 25u, 64u, 320u})
      for (const std::uint64_t above : {0u, 20000u, 50000u}) {
        const std::uint32_t number = drawn++;
        if (other != 0 && (number / 3 + other) % 3 != number % 3) continue;
        setup.ranks = 1 + number % 3;
        setup.tile_bytes = pages * 4096;
        setup.chunk_bytes = number % 2 == 1 ? 30000 : 1u << 28;
        setup.stream_above_bytes = above;
        expect_the_bits(setup, wanted,
                        compose("{}, tiles of {} pages, streamed above {}, {} ranks",
                                name_of(dtype), pages, above, setup.ranks));
      }
    ++other;
  }
}

TEST(StreamedSteps, HaveTheBitsOfWholeUpdatesWhateverASpecSays) {
  for (const bool nesterov : {false, true})
    for (const auto momentum : {libmuon::Momentum::ema, libmuon::Momentum::sum})
      for (const auto out : {libmuon::Out::weights, libmuon::Out::update}) {
        Training setup = to_stream({.ranks = 2, .chunk_bytes = 9000, .max_norm = 0.5});
        for (auto& group : setup.model.groups)
          if (auto* const spec = std::get_if<MuonSpec>(&group);
              spec && spec->form == libmuon::Form::gram) {
            spec->nesterov = nesterov;
            spec->momentum = momentum;
            spec->out = out;
            spec->weight_decay = out == libmuon::Out::update ? 0 : 0.1;
            spec->handed = nesterov ? Precision::bf16 : Precision::fp32;
          }
        const Held wanted = trained_alone(setup);
        setup.stream_above_bytes = 0;
        expect_the_bits(setup, wanted, "");
      }
}

TEST(StreamedSteps, AreSkippedWholeWhereAGradientIsNotFinite) {
  Training setup = to_stream({.ranks = 2, .chunk_bytes = 5000, .poison_step = 2});
  const Held wanted = trained_alone(setup);
  setup.stream_above_bytes = 0;
  const TempDir directory;
  const Outcome outcome = train(setup, directory.path(), kSteps);
  EXPECT_EQ(outcome.error, "");
  EXPECT_EQ(std::ranges::count_if(outcome.results, &libmuon::StepResult::skipped), 1);
  EXPECT_TRUE((Held{outcome.weights, tensors_of(directory.path())} == wanted));
}

// What a step moves by the plan, of all ranks, and the room that one takes at most.
struct Moved {
  Outcome outcome;
  std::uint64_t read = 0, written = 0, sent = 0, workspace = 0;
};

// All is paged; what is counted is what the plan says.
Moved moved(const libmuon::ModelSpec& model, std::uint32_t ranks, std::uint64_t above) {
  const TempDir directory;
  Moved all{train({.ranks = ranks,
                   .gradients = Policy::zero3,
                   .weights = Policy::zero3,
                   .chunk_bytes = 50000,
                   .budget_bytes = 4 * 4096,
                   .stream_above_bytes = above,
                   .model = model},
                  directory.path(), kSteps, Finish::just_stop)};
  EXPECT_EQ(all.outcome.error, "");
  for (std::uint32_t rank = 0; rank < ranks; ++rank) {
    const auto& plan = all.outcome.plans[rank];
    const auto& stats = all.outcome.stats[rank];
    EXPECT_EQ(stats.read_bytes, kSteps * plan.step_read_bytes + plan.install_read_bytes);
    EXPECT_GE(stats.sent_bytes, kSteps * plan.step_sent_bytes);
    all.read += plan.step_read_bytes;
    all.written += plan.step_written_bytes;
    all.sent += plan.step_sent_bytes;
    all.workspace = std::max(all.workspace, plan.workspace_bytes);
  }
  return all;
}

// Three passes over the momentum of tall, whose gradient comes three times; of each one more for a
// restart.
TEST(StreamedSteps, MoveExactlyThePredictedBytesInLessMemory) {
  libmuon::ModelSpec model;
  model.groups = {gram_of(Precision::fp32, {})};
  model.params = {{"tall", {4096, 64}, 0}};  // 256 tiles of momentum, as many of masters
  for (const std::uint32_t restarts : {0u, 1u}) {
    if (restarts > 0) model.groups = {gram_of(Precision::fp32, {2})};
    for (const std::uint32_t ranks : {1u, 2u}) {
      const Moved whole = moved(model, ranks, libmuon::kNothingStreamed);
      const Moved streamed = moved(model, ranks, 0);
      EXPECT_EQ(streamed.written, 2 * 256 * 4096u);
      EXPECT_EQ(streamed.read, (4 + restarts) * 256 * 4096u);
      // Half of the gradient comes from the other rank, and half of the weights go there.
      const std::uint64_t half = ranks == 1 ? 0 : 4096 * 64 / 2 * 4;
      EXPECT_EQ(whole.sent, 2 * half);
      EXPECT_EQ(streamed.sent, (4 + restarts) * half);
      EXPECT_LT(streamed.workspace * 3, whole.workspace * 2);
    }
  }
}

// 256 tiles of momentum, four to a row, each with parts of two strips of eight. Masters are visited
// for every strip, and behind the last one all of them.
TEST(StreamedSteps, OfAWideMatrixMoveExactlyThePredictedBytesInLessMemory) {
  libmuon::ModelSpec model;
  model.params = {{"wide", {64, 4096}, 0}};
  for (const std::uint32_t restarts : {0u, 1u}) {
    model.groups = {gram_of(Precision::fp32, std::vector<std::uint32_t>(restarts, 2u))};
    for (const std::uint32_t ranks : {1u, 2u}) {
      const Moved whole = moved(model, ranks, libmuon::kNothingStreamed);
      const Moved streamed = moved(model, ranks, 0);
      EXPECT_TRUE(whole.outcome == streamed.outcome);
      const std::uint64_t masters = 7 * 64 + 256;
      EXPECT_EQ(streamed.written, (256 + masters) * 4096u);
      EXPECT_EQ(streamed.read, (256 + (2 + restarts) * 8 * 64 + masters) * 4096u);
      // Tiles of two strips come twice in every pass over all strips; half of them from the other.
      const std::uint64_t half = ranks == 1 ? 0 : 4096 * 64 / 2 * 4;
      EXPECT_EQ(streamed.sent, (1 + (2 + restarts) * 2 + 1) * half);
      EXPECT_LT(streamed.workspace * 2, whole.workspace);
    }
  }
}

TEST(StreamedSteps, StopBeforeAWeightMovesWhereTheFactorIsNotFinite) {
  libmuon::ModelSpec model;
  MuonSpec ill = gram_of(Precision::fp32, {});
  for (auto& step : ill.iterations) step.a = 1e20f;
  model.groups = {ill};
  model.params = {{"tall", {2600, 3}, 0}};
  FailingWorld failing;
  const auto config = config_of({.ranks = 2,
                                 .chunk_bytes = 8000,
                                 .budget_bytes = kLittle,
                                 .stream_above_bytes = 0,
                                 .model = model},
                                model);
  std::vector<float> before, after;
  expect_well(failing.world.run([&](Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(failing.world, ranks, config));
    if (ranks.rank() == Rank{0}) before = rank.flat_weights();
    EBB_TRY(rank.hand_in(1));
    const auto stopped = rank.engine().step({});
    EXPECT_FALSE(stopped);
    if (stopped) return {};
    const bool owner = rank.engine().state_plan().computes(0, 0);
    if (owner) {
      EXPECT_EQ(stopped.error().code, Code::state);
      EXPECT_NE(stopped.error().message.find("parameter tall"), std::string::npos)
          << stopped.error().message;
    }
    if (ranks.rank() == Rank{0}) after = rank.flat_weights();
    return {};
  }));
  EXPECT_EQ(before, after);
}

}  // namespace
}  // namespace ebb::test::streamed_tests
