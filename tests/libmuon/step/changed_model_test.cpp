// A run that goes on with another model: what it gained, lost, froze and unfroze.
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "ebb/formats/conversion/memory_content.h"
#include "ebb/libswap/queue/io_queue.h"
#include "tests/libmuon/support/training.h"
#include "tests/libmuon/support/world.h"

namespace ebb::test {
namespace {

using libmuon::AdamSpec;
using libmuon::Communicator;
using libmuon::DroppedState;
using libmuon::ModelSpec;
using libmuon::MuonSpec;

constexpr std::uint32_t kMuon = 0, kAdam = 1, kFrozen = 2;

ModelSpec model_of(std::vector<libmuon::ParamSpec> params) {
  ModelSpec model;
  model.groups = {MuonSpec::keller(), AdamSpec{.lr = 1e-2}, AdamSpec{.lr = 0}};
  model.params = std::move(params);
  return model;
}

const libmuon::ParamSpec kMatrix{"matrix", {12, 20}, kMuon}, kVector{"vector", {64}, kAdam},
    kGone{"gone", {8, 8}, kMuon}, kFreshMatrix{"fresh.matrix", {10, 6}, kMuon},
    kFreshVector{"fresh.vector", {33}, kAdam};

// By parameter.
using Weights = std::map<std::string, std::vector<float>>;

struct Ran {
  Result<> answer;
  std::string origin;
  Weights weights;  // of rank 0, at the end
};

// Opens, steps with the gradients of the numbers given, commits.
Ran run(const std::filesystem::path& directory, const ModelSpec& model, std::uint32_t ranks,
        const std::vector<std::uint64_t>& gradients, const Checkpoint* checkpoint = nullptr,
        DroppedState dropped = DroppedState::refused) {
  auto chosen = libswap::open_backend(libswap::BackendChoice::automatic);
  EBB_CHECK(chosen.has_value());
  World world(std::move(chosen->backend), directory, ranks);
  auto config = config_of(Training{.ranks = ranks}, model);
  config.dropped = dropped;
  Ran ran;
  const auto answers = world.run([&](Communicator& rank) -> Result<> {
    EBB_TRY_ASSIGN(auto engine, RankEngine::open(world, rank, config, checkpoint));
    for (const std::uint64_t number : gradients) {
      EBB_TRY(engine.hand_in(number));
      EBB_TRY(engine.step());
    }
    EBB_TRY(engine.commit());
    if (rank.rank() != Rank{0}) return {};
    ran.origin = engine.engine().origin();
    for (std::size_t i = 0; i < model.params.size(); ++i)
      ran.weights[model.params[i].name] = engine.weights()[i];
    return {};
  });
  ran.answer = answers[0];
  EXPECT_TRUE(ran.answer) << ran.answer.error().message;
  return ran;
}

// Of every rank.
std::vector<Error> refusals_of(const std::filesystem::path& directory, const ModelSpec& model,
                               std::uint32_t ranks, const libmuon::InitialWeights& initial,
                               const Checkpoint* checkpoint = nullptr) {
  auto chosen = libswap::open_backend(libswap::BackendChoice::automatic);
  EBB_CHECK(chosen.has_value());
  World world(std::move(chosen->backend), directory, ranks);
  const auto config = config_of(Training{.ranks = ranks}, model);
  const auto answers = world.run([&](Communicator& rank) -> Result<> {
    EBB_TRY(libmuon::Engine::open(config, rank, world.io(), world.swap(),
                                  {.checkpoint = checkpoint, .initial = initial}));
    return {};
  });
  std::vector<Error> errors;
  for (const auto& answer : answers)
    errors.push_back(answer ? Error{Code::usage, "it was opened"} : answer.error());
  return errors;
}

Error refusal_of(const std::filesystem::path& directory, const ModelSpec& model,
                 const libmuon::InitialWeights& initial) {
  return refusals_of(directory, model, 1, initial).front();
}

// A checkpoint of another program: the weights of a matrix, and AdamW's state of a vector.
class Foreign {
 public:
  Foreign() {
    catalog_.format = "dcp";
    catalog_.step = 7;
    for (const auto& [name, state, shape] :
         {std::tuple{"matrix", "param", Shape{12, 20}}, std::tuple{"vector", "param", Shape{64}},
          std::tuple{"vector", "exp_avg", Shape{64}},
          std::tuple{"vector", "exp_avg_sq", Shape{64}}}) {
      TensorEntry& tensor = catalog_.tensors.emplace_back();
      tensor.name = name;
      tensor.state = state;
      tensor.shape = shape;
      data_.emplace_back(formats::volume(shape), 0.25f);
    }
    catalog_.groups = {{"adamw", {}, {"vector"}}};
  }
  Result<formats::MemoryContent> checkpoint() const {
    std::vector<formats::Held> held;
    for (std::uint32_t i = 0; i < data_.size(); ++i)
      held.push_back(
          {i, formats::whole(catalog_.tensors[i].shape), std::as_bytes(std::span(data_[i]))});
    return formats::MemoryContent::make(catalog_, std::move(held));
  }
  const std::vector<float>& matrix() const { return data_[0]; }

 private:
  Catalog catalog_;
  std::vector<std::vector<float>> data_;
};

TEST(ChangedModel, GainsAndLosesParametersAndTheOthersGoOnBitForBit) {
  const ModelSpec before = model_of({kMatrix, kVector, kGone});
  const ModelSpec after = model_of({kMatrix, kVector, kFreshMatrix, kFreshVector});
  const TempDir whole, anew;
  const Weights old = run(whole.path(), before, 1, {1, 2, 3, 4, 5, 6}).weights;
  const Weights fresh = run(anew.path(), after, 1, {4, 5, 6}).weights;  // AdamW counts from one
  for (const std::uint32_t ranks : {1u, 2u, 3u}) {
    const TempDir directory;
    run(directory.path(), before, 2, {1, 2, 3});
    EXPECT_EQ(run(directory.path(), after, ranks, {4, 5}, nullptr, DroppedState::allowed).origin,
              "transferred the store of 2 ranks at step 3 (new: fresh.matrix, "
              "fresh.vector; not in the model any more: gone)");
    const Ran resumed = run(directory.path(), after, ranks, {6});
    EXPECT_EQ(resumed.origin, "resumed the store at step 5");
    for (const char* name : {"matrix", "vector"}) EXPECT_EQ(resumed.weights.at(name), old.at(name));
    for (const char* name : {"fresh.matrix", "fresh.vector"})
      EXPECT_EQ(resumed.weights.at(name), fresh.at(name)) << name;
  }
}

// Frozen parameters keep their weights in the store, under an optimizer whose rate is zero.
TEST(ChangedModel, FreezesAndUnfreezesWithItsWeights) {
  auto frozen = kMatrix;
  frozen.group = kFrozen;
  const ModelSpec trained = model_of({kMatrix, kVector}), half = model_of({frozen, kVector});
  const TempDir directory, whole;
  const Weights before = run(directory.path(), trained, 2, {1, 2}).weights;
  const Ran cold = run(directory.path(), half, 2, {3, 4});
  EXPECT_EQ(cold.origin,
            "transferred the store of 2 ranks at step 2 (by Muon until now, by AdamW from zero "
            "moments: matrix)");
  EXPECT_EQ(cold.weights.at("matrix"), before.at("matrix"));
  const Ran warm = run(directory.path(), trained, 3, {5});
  EXPECT_EQ(warm.origin,
            "transferred the store of 2 ranks at step 4 (by AdamW until now, by Muon from zero "
            "momentum: matrix)");
  EXPECT_NE(warm.weights.at("matrix"), before.at("matrix"));
  EXPECT_EQ(warm.weights.at("vector"),
            run(whole.path(), trained, 1, {1, 2, 3, 4, 5}).weights.at("vector"));
}

TEST(ChangedModel, WeightsThatWereNeverTrainedAreTaken) {
  const Foreign foreign;
  const auto content = foreign.checkpoint();
  ASSERT_TRUE(content);
  const TempDir directory;
  const Ran ran = run(directory.path(), model_of({kMatrix, kVector}), 2, {}, &*content);
  EXPECT_EQ(ran.origin,
            "loaded a dcp checkpoint of 1 ranks at step 7 (not trained until now: matrix)");
  EXPECT_EQ(ran.weights.at("matrix"), foreign.matrix());
  EXPECT_EQ(tensors_of(directory.path()).at("matrix momentum_buffer"), std::vector<float>(240, 0));
}

TEST(ChangedModel, AnotherModelIsRefusedAndTheStoreStays) {
  const TempDir directory;
  run(directory.path(), model_of({kMatrix, kVector}), 2, {1});
  const ModelSpec other = model_of({kFreshMatrix, kFreshVector});
  const Error nothing = refusal_of(directory.path(), other, noisy_weights);
  EXPECT_EQ(nothing.code, Code::layout);
  EXPECT_EQ(nothing.message,
            "the ebb checkpoint has no parameter of the model, whose first is fresh.matrix");
  const Error no_weights =
      refusal_of(directory.path(), model_of({kMatrix, kVector, kFreshVector}), nullptr);
  EXPECT_EQ(no_weights.code, Code::usage);
  EXPECT_EQ(no_weights.message, "parameters have no initial weights: new: fresh.vector");
  auto wider = kVector;
  wider.shape = {65};
  EXPECT_EQ(refusal_of(directory.path(), model_of({kMatrix, wider}), noisy_weights).code,
            Code::layout);
  EXPECT_EQ(run(directory.path(), model_of({kMatrix, kVector}), 2, {}).origin,
            "resumed the store at step 1");
}

// A name that is mistyped, a block that is left out: state of days would be gone with one start.
TEST(ChangedModel, LosesNoStateUnlessToldAndTheStoreStays) {
  const ModelSpec before = model_of({kMatrix, kVector, kGone});
  auto mistyped = kGone;
  mistyped.name = "gnoe";
  for (const std::uint32_t ranks : {1u, 2u, 3u}) {
    const TempDir directory;
    run(directory.path(), before, 2, {1, 2});
    const auto kept = tensors_of(directory.path());
    for (const auto& [model, message] :
         {std::pair{model_of({kMatrix, kVector}),
                    "the ebb checkpoint holds state of parameters that the model has not: gone"},
          std::pair{model_of({kMatrix, kVector, mistyped}),
                    "the ebb checkpoint holds state of parameters that the model has not: gone; "
                    "it has not these of the model: gnoe"},
          std::pair{model_of({kGone}),
                    "the ebb checkpoint holds state of parameters that the "
                    "model has not: matrix, vector"}})
      for (const Error& error : refusals_of(directory.path(), model, ranks, noisy_weights)) {
        EXPECT_EQ(error.code, Code::layout);
        EXPECT_EQ(error.message, message);
        EXPECT_NE(error.hint.find("DroppedState::allowed"), std::string::npos) << error.hint;
      }
    EXPECT_EQ(tensors_of(directory.path()), kept);
    EXPECT_EQ(run(directory.path(), before, 2, {}).origin, "resumed the store at step 2");
  }
}

TEST(ChangedModel, LosesNoStateOfACheckpointUnlessTold) {
  const Foreign foreign;
  const auto content = foreign.checkpoint();
  ASSERT_TRUE(content);
  const ModelSpec model = model_of({kMatrix, kFreshVector});
  const TempDir directory;
  for (const Error& error : refusals_of(directory.path(), model, 2, noisy_weights, &*content))
    EXPECT_EQ(error.message,
              "the dcp checkpoint holds state of parameters that the model has not: vector; it "
              "has not these of the model: fresh.vector");
  EXPECT_EQ(run(directory.path(), model, 2, {}, &*content, DroppedState::allowed).origin,
            "loaded a dcp checkpoint of 1 ranks at step 7 (new: fresh.vector; not trained until "
            "now: matrix; not in the model any more: vector)");
}

}  // namespace
}  // namespace ebb::test
