// Masters take what the trainer wrote to its weights between steps, and nothing else.
#include <gtest/gtest.h>

#include <array>
#include <limits>
#include <numeric>

#include "ebb/formats/core/bf16.h"
#include "tests/libmuon/support/bound_masters.h"
#include "tests/libmuon/support/failing_world.h"
#include "tests/libmuon/support/late_accelerator.h"

namespace ebb::test {
namespace {

using libmuon::Communicator;
using libmuon::Placement;
using libmuon::Side;
using libswap::FaultOn;
using libswap::FaultPlan;

struct Where {
  Policy gradients, weights;
  Placement placement = Placement::owner;
};
constexpr std::array kWheres = {Where{Policy::zero12, Policy::replicated},
                                Where{Policy::zero3, Policy::zero3},
                                Where{Policy::zero3, Policy::zero3, Placement::shard},
                                Where{Policy::rows, Policy::rows, Placement::shard}};

// A number of bf16 that no training of these tests comes to.
float value_of(std::uint32_t param, std::uint64_t element) {
  return formats::bf16_to_f32(formats::f32_to_bf16(3 + noise(param, 99, element) / 4));
}
bool is_written(std::uint32_t param, std::uint64_t element) { return (element + param) % 3 == 0; }

void write_some(RankEngine& rank) {
  rank.edit_weights([](std::uint32_t param, std::uint64_t element, float& weight) {
    if (is_written(param, element)) weight = value_of(param, element);
  });
}

std::vector<std::uint32_t> first_params(std::size_t count) {
  std::vector<std::uint32_t> params(count);
  std::iota(params.begin(), params.end(), 0u);
  return params;
}

// What is stored once masters of the first `taken` parameters have taken what was written.
Stored with_what_was_written(Stored stored, const libmuon::ModelSpec& model, std::size_t taken) {
  for (std::uint32_t param = 0; param < taken; ++param) {
    auto& master = stored.at(model.params[param].name + " master");
    for (std::uint64_t i = 0; i < master.size(); ++i)
      if (is_written(param, i)) master[i] = value_of(param, i);
  }
  return stored;
}

Training training_of(const Where& where, std::uint64_t budget) {
  return {.ranks = 2,
          .gradients = where.gradients,
          .weights = where.weights,
          .placement = where.placement,
          .chunk_bytes = 20000,
          .budget_bytes = budget};
}

// Edited behind step 2; answers what is stored behind step 3.
Stored edited(FailingWorld& failing, const libmuon::EngineConfig& config) {
  Stored last;
  expect_well(failing.world.run([&](Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(failing.world, ranks, config));
    EBB_TRY(step_to(rank, 2));
    EBB_TRY_ASSIGN(const Stored before, rank.stored());
    write_some(rank);
    const std::size_t taken = config.model.params.size() - 2;
    EBB_TRY(rank.engine().take_weights(first_params(taken)));
    EBB_TRY_ASSIGN(const Stored behind, rank.stored());
    EXPECT_EQ(behind, with_what_was_written(before, config.model, taken));
    EBB_TRY(rank.engine().install_weights());
    rank.edit_weights([&](std::uint32_t param, std::uint64_t element, float& weight) {
      const float master = behind.at(config.model.params[param].name + " master")[element];
      const bool rounds = config.model.params[param].weight == DType::bf16;
      ASSERT_EQ(weight, rounds ? formats::bf16_to_f32(formats::f32_to_bf16(master)) : master);
    });
    EBB_TRY(step_to(rank, 3));
    EBB_TRY_ASSIGN(const Stored all, rank.stored());
    if (ranks.rank() == Rank{0}) last = all;
    return {};
  }));
  return last;
}

TEST(TakeWeights, TakesWhatWasWrittenWhereverTheStateAndTheWeightsLie) {
  Stored plain;
  for (const Where& where : kWheres)
    for (const bool bf16 : {false, true})
      for (const std::uint64_t budget : {kMuch, kLittle}) {
        const TempDir folder;
        FailingWorld failing(folder);
        const auto model = bf16 ? with_bf16_weights(nuisance_model()) : nuisance_model();
        const Stored last = edited(failing, config_of(training_of(where, budget), model));
        if (plain.empty()) plain = last;
        EXPECT_EQ(last, plain);
      }
}

TEST(TakeWeights, TakesThemFromADeviceWhoseEventsComeLate) {
  for (const Side weights : {Side::host, Side::device})
    for (const Side wire : {Side::host, Side::device}) {
      const TempDir folder;
      FailingWorld failing(folder);
      LateAccelerator accelerator(5, 30);
      Training setup = training_of(kWheres[1], kLittle);
      setup.accelerator = &accelerator;
      setup.weights_on = weights;
      setup.wire = wire;
      const auto config = config_of(setup, nuisance_model());
      expect_well(failing.world.run([&](Communicator& real) -> Result<> {
        HostRanks on_host(real);
        Communicator& ranks = wire == Side::host ? static_cast<Communicator&>(on_host) : real;
        EBB_TRY_ASSIGN(auto rank, RankEngine::open(failing.world, ranks, config));
        EBB_TRY(step_to(rank, 2));
        EBB_TRY_ASSIGN(const Stored before, rank.stored());
        write_some(rank);
        EBB_TRY(rank.engine().take_weights(first_params(config.model.params.size())));
        EBB_TRY_ASSIGN(const Stored behind, rank.stored());
        EXPECT_EQ(behind, with_what_was_written(before, config.model, config.model.params.size()));
        return {};
      }));
    }
}

// Of a parameter that somebody wrote to, all masters are the weights; the others keep their halves.
TEST(TakeWeights, ClearsTheLowHalvesOfAParameterThatWasWritten) {
  for (const Where& where : kWheres) {
    if (where.weights == Policy::rows) continue;  // as zero3
    const TempDir folder;
    FailingWorld failing(folder);
    const auto config = config_of(in_halves(training_of(where, kLittle)), model_in_halves());
    const auto& params = config.model.params;
    expect_well(failing.world.run([&](Communicator& ranks) -> Result<> {
      EBB_TRY_ASSIGN(auto rank, RankEngine::open(failing.world, ranks, config));
      EBB_TRY(step_to(rank, 2));
      EBB_TRY_ASSIGN(const Stored before, rank.stored());
      const auto all = first_params(params.size());
      EBB_TRY(rank.engine().take_weights(all));
      EBB_TRY_ASSIGN(const Stored same, rank.stored());
      EXPECT_EQ(same, before);  // nobody wrote
      rank.edit_weights([](std::uint32_t param, std::uint64_t element, float& weight) {
        if (param % 2 == 0 && element == 1) weight = 3;
      });
      EBB_TRY(rank.engine().take_weights(all));
      Stored wanted = before;
      for (std::uint32_t param = 0; param < params.size(); param += 2) {
        auto& master = wanted.at(params[param].name + " master");
        if (master.size() < 2) continue;
        for (float& value : master) value = away(value);
        master[1] = 3;
      }
      EBB_TRY_ASSIGN(const Stored behind, rank.stored());
      EXPECT_EQ(behind, wanted);
      return step_to(rank, 3);  // the weights are those that were handed out
    }));
  }
}

// --- disks that fail ---

// What was written is 2 and more.
void round_if_written(std::vector<float>& master) {
  if (std::ranges::any_of(master, [](float value) { return value > 2; }))
    for (float& value : master) value = away(value);
}

Stored with_all_that_was_written(const Stored& before, const libmuon::EngineConfig& config,
                                 bool halves) {
  const auto& params = config.model.params;
  Stored stored = with_what_was_written(before, config.model, params.size());
  if (halves)
    for (const auto& param : params) round_if_written(stored.at(param.name + " master"));
  return stored;
}

libmuon::EngineConfig paged(bool halves) {
  const Training setup = training_of(kWheres[1], kLittle);
  return halves ? config_of(in_halves(setup), model_in_halves())
                : config_of(setup, nuisance_model());
}

TEST(TakeWeights, GoesOnWhicheverReadOrWriteFailed) {
  std::uint64_t failed = 0;
  for (const bool halves : {false, true})
    for (const FaultOn on : {FaultOn::read, FaultOn::write})
      for (std::uint64_t at = 0; at < 12; at += halves ? 3 : 1) {
        const TempDir folder;
        FailingWorld failing(folder);
        const auto config = paged(halves);
        const auto all = first_params(config.model.params.size());
        expect_well(failing.world.run([&](Communicator& ranks) -> Result<> {
          EBB_TRY_ASSIGN(auto rank, RankEngine::open(failing.world, ranks, config));
          EBB_TRY(step_to(rank, 2));
          EBB_TRY_ASSIGN(const Stored before, rank.stored());
          const Stored wanted = with_all_that_was_written(before, config, halves);
          write_some(rank);
          EBB_TRY(failing.meanwhile(ranks, [&] {
            failing.faults->add(
                {.on = on, .at = at, .count = FaultPlan::kForEver, .path_part = "rank-00001"});
          }));
          const auto taken = rank.engine().take_weights(all);
          EBB_TRY(failing.meanwhile(ranks, [&] { failing.faults->clear(); }));
          if (!taken) {
            if (ranks.rank() == Rank{0}) ++failed;
            expect_error(rank.engine().snapshot(), Code::state, "snapshot");
            EBB_TRY(failing.meanwhile(ranks, [] {}));
            expect_error(rank.engine().install_weights(), Code::state, "install_weights");
            EBB_TRY(failing.meanwhile(ranks, [] {}));
            expect_error(rank.hand_in(3), Code::state, "a gradient");
            EBB_TRY(rank.engine().take_weights(std::span(all).first(1)));
          }
          EBB_TRY_ASSIGN(const Stored behind, rank.stored());
          EXPECT_EQ(behind, wanted);
          return step_to(rank, 3);
        }));
      }
  EXPECT_GT(failed, 10u);
}

TEST(TakeWeights, ThatStoppedGoesBackOrToAnotherDisk) {
  for (const bool back : {true, false}) {
    const TempDir folder;
    FailingWorld failing(folder);
    auto other = libswap::SwapDirectory::open(failing.world.io(), folder.path() / "other");
    ASSERT_TRUE(other);
    const auto config = config_of(training_of(kWheres[0], kLittle), nuisance_model());
    const auto all = first_params(config.model.params.size());
    expect_well(failing.world.run([&](Communicator& ranks) -> Result<> {
      EBB_TRY_ASSIGN(auto rank, RankEngine::open(failing.world, ranks, config));
      EBB_TRY(step_to(rank, 2));
      EBB_TRY_ASSIGN(const Stored before, rank.stored());
      write_some(rank);
      EBB_TRY(failing.meanwhile(ranks, [&] {
        failing.faults->add(
            {.on = FaultOn::write, .at = 1, .count = FaultPlan::kForEver, .path_part = "/swap"});
      }));
      expect_error(rank.engine().take_weights(all), Code::io, "the disk");
      if (back) {
        EBB_TRY(failing.meanwhile(ranks, [&] { failing.faults->clear(); }));
        EBB_TRY(rank.engine().abandon_step());
      } else {
        EBB_TRY(rank.engine().save_to(**other));
        EBB_TRY(rank.engine().take_weights(all));
      }
      EBB_TRY_ASSIGN(const Stored behind, rank.stored());
      EXPECT_EQ(behind, back ? before : with_what_was_written(before, config.model, all.size()));
      return {};
    }));
  }
}

// A disk that did not keep its promise, with weights that are halves of masters written meanwhile:
// they are taken on another one.
TEST(TakeWeights, FollowsTheStateToAnotherDisk) {
  for (const bool halves : {false, true}) {
    const TempDir folder;
    FailingWorld failing(folder);
    auto other = libswap::SwapDirectory::open(failing.world.io(), folder.path() / "other");
    ASSERT_TRUE(other);
    const auto config = paged(halves);
    const auto all = first_params(config.model.params.size());
    expect_well(failing.world.run([&](Communicator& ranks) -> Result<> {
      EBB_TRY_ASSIGN(auto rank, RankEngine::open(failing.world, ranks, config));
      EBB_TRY(step_to(rank, 2));
      EBB_TRY_ASSIGN(const Stored before, rank.stored());
      const Stored wanted = with_all_that_was_written(before, config, halves);
      EBB_TRY(failing.meanwhile(
          ranks, [&] { failing.faults->add({.on = FaultOn::sync, .path_part = "/swap"}); }));
      EXPECT_FALSE(rank.commit());
      EBB_TRY(failing.meanwhile(ranks, [&] { failing.faults->clear(); }));
      write_some(rank);
      expect_error(rank.engine().take_weights(all), Code::state, "a disk that is lost");
      EBB_TRY(failing.meanwhile(ranks, [] {}));
      EBB_TRY(rank.engine().save_to(**other));
      EBB_TRY(rank.engine().take_weights(all));
      EBB_TRY_ASSIGN(const Stored behind, rank.stored());
      EXPECT_EQ(behind, wanted);
      return step_to(rank, 3);
    }));
  }
}

// Weights that are halves of masters, written before the state goes to another disk: nothing is
// committed there before they are taken.
TEST(TakeWeights, ComeBeforeTheFirstSnapshotOnAnotherDisk) {
  const TempDir folder;
  FailingWorld failing(folder);
  auto other = libswap::SwapDirectory::open(failing.world.io(), folder.path() / "other");
  ASSERT_TRUE(other);
  const auto config = paged(true);
  const auto all = first_params(config.model.params.size());
  expect_well(failing.world.run([&](Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(failing.world, ranks, config));
    EBB_TRY(step_to(rank, 2));
    write_some(rank);
    EBB_TRY(failing.meanwhile(ranks, [] {}));
    EBB_TRY(rank.engine().save_to(**other));
    EXPECT_EQ(rank.engine().committed_step(), 0u);
    EBB_TRY(rank.engine().take_weights(all));
    EBB_TRY(rank.commit());
    EXPECT_EQ(rank.engine().committed_step(), 2u);
    return {};
  }));
}

// A snapshot that is being written is of before, the next one has what was taken.
TEST(TakeWeights, IsInTheNextSnapshot) {
  for (const std::uint32_t slots : {2u, 3u}) {
    const TempDir folder;
    FailingWorld failing(folder);
    auto setup = training_of(kWheres[1], kHalf);
    setup.slots = slots;
    const auto config = config_of(setup, nuisance_model());
    const auto all = first_params(config.model.params.size());
    Stored wanted;
    expect_well(failing.world.run([&](Communicator& ranks) -> Result<> {
      EBB_TRY_ASSIGN(auto rank, RankEngine::open(failing.world, ranks, config));
      EBB_TRY(step_to(rank, 2));
      EBB_TRY_ASSIGN(const bool begun, rank.engine().snapshot());
      EXPECT_TRUE(begun);
      write_some(rank);
      EBB_TRY(rank.engine().take_weights(all));
      EXPECT_EQ(rank.engine().committed_step(), 2u);
      EBB_TRY_ASSIGN(const auto pinned, rank.engine().open_export());
      EBB_TRY_ASSIGN(const auto checkpoint, pinned.describe());
      const Stored before = tensors_of(*checkpoint);
      if (slots == 3) {
        EBB_TRY_ASSIGN(const Stored behind, rank.stored());
        EXPECT_EQ(behind, with_what_was_written(before, config.model, all.size()));
      }
      if (ranks.rank() == Rank{0}) wanted = before;
      return {};
    }));
    failing.world.reopen(2);
    expect_well(failing.world.run([&](Communicator& ranks) -> Result<> {
      EBB_TRY_ASSIGN(auto rank, RankEngine::open(failing.world, ranks, config));
      EXPECT_EQ(rank.engine().step_count(), 2u);
      EBB_TRY_ASSIGN(const Stored resumed, rank.stored());
      EXPECT_EQ(resumed,
                slots == 3 ? with_what_was_written(wanted, config.model, all.size()) : wanted);
      return {};
    }));
  }
}

// --- what is refused ---

TEST(TakeWeights, RefusesByNameBeforeAnythingChanges) {
  const TempDir folder;
  FailingWorld failing(folder);
  auto model = nuisance_model();
  auto config = config_of(training_of(kWheres[0], kLittle), model);
  const auto all = first_params(model.params.size());
  expect_well(failing.world.run([&](Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(failing.world, ranks, config));
    EBB_TRY(step_to(rank, 1));
    EBB_TRY_ASSIGN(const Stored before, rank.stored());
    const auto refused = [&](std::span<const std::uint32_t> params, const std::string& what) {
      const auto taken = rank.engine().take_weights(params);
      expect_error(taken, Code::usage, what);
      EXPECT_NE(taken.error().message.find(what), std::string::npos) << taken.error().message;
    };
    write_some(rank);
    const std::vector<std::uint32_t> none = {static_cast<std::uint32_t>(model.params.size())};
    refused(none, "there is no parameter");
    const std::uint32_t of_one = index_of(ranks.rank());
    refused({&of_one, 1}, "take_weights() of " + model.params[0].name);
    for (const float value :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      rank.edit_weights([&](std::uint32_t param, std::uint64_t element, float& weight) {
        if (param == 2 && element == 0) weight = value;
      });
      const auto taken = rank.engine().take_weights(all);
      EXPECT_FALSE(taken);
      EXPECT_NE(taken.error().message.find("the weights of " + model.params[2].name),
                std::string::npos)
          << taken.error().message;
    }
    EBB_TRY_ASSIGN(const Stored behind, rank.stored());
    EXPECT_EQ(behind, before);
    EBB_TRY(rank.engine().take_weights({}));
    return {};
  }));
}

TEST(TakeWeights, RefusesParametersWhoseMastersAreTheTrainers) {
  const TempDir folder;
  FailingWorld failing(folder);
  auto model = nuisance_model();
  for (auto& group : model.groups)
    if (auto* const muon = std::get_if<libmuon::MuonSpec>(&group)) {
      muon->out = libmuon::Out::update;
      muon->weight_decay = 0;
    }
  const auto config = config_of(training_of(kWheres[0], kLittle), model);
  expect_well(failing.world.run([&](Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(failing.world, ranks, config));
    for (std::uint32_t param = 0; param < model.params.size(); ++param) {
      const auto taken = rank.engine().take_weights({&param, 1});
      if (out_of(model, param) != libmuon::Out::update) {
        EBB_TRY(taken);
        continue;
      }
      expect_error(taken, Code::usage, model.params[param].name);
    }
    return {};
  }));
}

}  // namespace
}  // namespace ebb::test
