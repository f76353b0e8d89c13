// A state is read and written by its name, wherever it lies, between steps.
#include <gtest/gtest.h>

#include <array>

#include "ebb/formats/conversion/convert.h"
#include "ebb/formats/core/bf16.h"
#include "ebb/libswap/trace.h"
#include "tests/libmuon/support/bound_masters.h"
#include "tests/libmuon/support/by_name.h"
#include "tests/libmuon/support/failing_world.h"
#include "tests/libmuon/support/late_accelerator.h"
#include "tests/support/chrome_trace.h"

namespace ebb::test {
namespace {

using libmuon::Communicator;
using libmuon::Placement;
using libmuon::StateBuffer;
using libswap::FaultOn;
using libswap::FaultPlan;

const std::array<std::string, 4> kStates = {"master", "momentum_buffer", "exp_avg", "exp_avg_sq"};

struct Setting {
  Training training;
  std::string what;
};

// Layouts, placements, dtypes, rooms: chunks of a part of a matrix, budgets that page.
std::vector<Setting> settings() {
  std::vector<Setting> all;
  const auto add = [&](const std::string& what, Training setup) {
    setup.budget_bytes = kLittle;
    all.push_back({std::move(setup), what});
  };
  for (const Placement placement : kPlacements)
    for (const Policy policy : {Policy::zero3, Policy::rows, Policy::zero12, Policy::layer_wise})
      for (const std::uint64_t chunk : {1u, 20000u, 1u << 28}) {
        Training setup{.ranks = 2, .gradients = policy, .weights = policy, .placement = placement};
        setup.chunk_bytes = chunk;
        add(compose("{}, {}, chunks of {}", name_of(policy), libmuon::name_of(placement), chunk),
            setup);
      }
  Training setup{.ranks = 2, .weights = Policy::replicated};
  setup.chunk_bytes = 20000;
  add("replicated weights", setup);
  setup.model = with_bf16_weights(nuisance_model());
  setup.weights = Policy::zero3;
  add("weights in bf16", setup);
  setup.dtypes = {{"momentum_buffer", DType::bf16}};
  add("momentum in bf16", setup);
  for (const Policy policy : {Policy::zero3, Policy::rows, Policy::replicated})
    for (const Placement placement : kPlacements) {
      if (placement == Placement::shard && policy != Policy::rows) continue;
      Training halves{.ranks = 4,
                      .copies = policy == Policy::rows ? 2u : 1u,
                      .gradients = policy == Policy::replicated ? Policy::zero12 : policy,
                      .weights = policy,
                      .placement = placement,
                      .dtypes = kHalves,
                      .model = with_bf16_weights(nuisance_model())};
      halves.chunk_bytes = 20000;
      add(compose("masters in halves, {}, {}", name_of(policy), libmuon::name_of(placement)),
          halves);
    }
  add("one rank", {.ranks = 1});
  add("copies", {.ranks = 4, .copies = 2, .gradients = Policy::zero3, .weights = Policy::zero3});
  add("copies, on shards", {.ranks = 4,
                            .copies = 2,
                            .gradients = Policy::rows,
                            .weights = Policy::rows,
                            .placement = Placement::shard});
  Training tiny{.ranks = 2, .gradients = Policy::replicated, .weights = Policy::zero12};
  tiny.model.params = {{"scale", {}, 1}, {"one", {1, 1}, 0}};
  add("an element", tiny);
  tiny.gradients = Policy::layer_wise, tiny.weights = Policy::zero3;  // another rank's
  add("an element", tiny);
  Training adam{.ranks = 3, .gradients = Policy::zero3};
  for (auto& param : adam.model.params) param.group = 1;
  add("AdamW alone", adam);
  return all;
}

bool has(const libmuon::ModelSpec& model, std::uint32_t param, const std::string& state) {
  const bool matrix =
      std::holds_alternative<libmuon::MuonSpec>(model.groups[model.params[param].group]);
  return state == "master" || (matrix ? state == "momentum_buffer" : state != "momentum_buffer");
}

// What a rank has of a state.
ByName copied_of(const libmuon::Engine& engine, const libmuon::ModelSpec& model,
                 const std::string& state) {
  std::vector<std::uint32_t> have;
  for (std::uint32_t param = 0; param < model.params.size(); ++param)
    if (has(model, param, state)) have.push_back(param);
  return {engine.state_plan(), have};
}

// What a rank has of all states of matrices, or of the others: each parameter has all of them.
AllByName all_of(const libmuon::Engine& engine, const libmuon::ModelSpec& model, bool matrices) {
  std::vector<std::string> states;
  for (const std::string& state : kStates)
    if (state == "master" || (state == "momentum_buffer") == matrices) states.push_back(state);
  std::vector<std::uint32_t> have;
  for (std::uint32_t param = 0; param < model.params.size(); ++param)
    if (has(model, param, "momentum_buffer") == matrices) have.push_back(param);
  return {engine.state_plan(), std::move(states), have};
}

// Of all states, what is not what is stored, read one by one or together.
std::string not_as_stored(libmuon::Engine& engine, const libmuon::ModelSpec& model,
                          const Stored& stored) {
  std::string found;
  for (const std::string& state : kStates) {
    ByName copied = copied_of(engine, model, state);
    if (const auto read = engine.read_state(state, copied.buffers()); !read)
      return read.error().message;
    copied.for_all([&](std::uint32_t param, std::uint64_t i, float value) {
      const float wanted = stored.at(model.params[param].name + " " + state)[i];
      if (found.empty() && value != wanted)
        found = compose("{} of {}, element {}", state, model.params[param].name, i);
    });
  }
  for (const bool matrices : {true, false}) {
    AllByName copied = all_of(engine, model, matrices);
    if (const auto read = engine.read_states(copied.buffers()); !read) return read.error().message;
    copied.for_all(
        [&](const std::string& state, std::uint32_t param, std::uint64_t i, float value) {
          const float wanted = stored.at(model.params[param].name + " " + state)[i];
          if (found.empty() && value != wanted)
            found = compose("{} of {}, element {}, together", state, model.params[param].name, i);
        });
  }
  return found;
}

TEST(StateByName, IsReadFromWhereverItLies) {
  for (const auto& [setup, what] : settings()) {
    const TempDir folder;
    World world(disk(), folder.path(), setup.ranks);
    const auto config = config_of(setup, setup.model);
    expect_well(world.run([&](Communicator& ranks) -> Result<> {
      EBB_TRY_ASSIGN(auto rank, RankEngine::open(world, ranks, config));
      EBB_TRY(step_to(rank, 2));
      EBB_TRY_ASSIGN(const Stored stored, rank.stored());
      EXPECT_EQ(not_as_stored(rank.engine(), setup.model, stored), "") << what;
      return step_to(rank, 3);
    }));
  }
}

float written(const std::string& state, std::uint32_t param, std::uint64_t element) {
  const float value = noise(state.size(), param, element);
  return state == "exp_avg_sq" ? value * value : value;
}

// All states, one by one or those of a parameter together; 41 steps are taken then.
Result<> write_all(libmuon::Engine& engine, const libmuon::ModelSpec& model, bool together) {
  if (together) {
    for (const bool matrices : {true, false}) {
      AllByName copied = all_of(engine, model, matrices);
      copied.for_all([&](const std::string& state, std::uint32_t param, std::uint64_t i,
                         float& value) { value = written(state, param, i); });
      EBB_TRY(engine.write_states(copied.buffers(), 41));
    }
    return engine.weights_ready(0);  // those of the last step
  }
  for (const std::string& state : kStates) {
    ByName copied = copied_of(engine, model, state);
    copied.for_all([&](std::uint32_t param, std::uint64_t i, float& value) {
      value = written(state, param, i);
    });
    EBB_TRY(engine.write_state(state, copied.buffers(), 41));
    EBB_TRY(engine.weights_ready(0));
  }
  return {};
}

// Each rank has the high halves of what it holds, copies of it too.
void expect_highs_of(const Stored& stored, RankEngine& rank, const libmuon::ModelSpec& model) {
  rank.edit_weights([&](std::uint32_t param, std::uint64_t element, float& weight) {
    const std::string& name = model.params[param].name;
    ASSERT_EQ(weight, away(stored.at(name + " master")[element])) << name;
  });
}

// With what is written, and `taken`, all end with the same bits; those of momentum in bf16 apart.
TEST(StateByName, IsWrittenToWhereverItLiesAndStepsGoOnFromIt) {
  std::map<std::string, Stored> wanted;  // by the model
  bool together = false;
  for (const auto& [setup, what] : settings()) {
    together = !together;
    const TempDir folder;
    World world(disk(), folder.path(), setup.ranks);
    const auto config = config_of(setup, setup.model);
    const bool narrow = setup.dtypes.contains("momentum_buffer");
    Stored last;
    expect_well(world.run([&](Communicator& ranks) -> Result<> {
      EBB_TRY_ASSIGN(auto rank, RankEngine::open(world, ranks, config));
      libmuon::Engine& engine = rank.engine();
      EBB_TRY(step_to(rank, 1));
      EBB_TRY(write_all(engine, setup.model, together));
      EBB_TRY_ASSIGN(const Stored stored, rank.stored());
      if (setup.dtypes.contains("master")) expect_highs_of(stored, rank, setup.model);
      for (std::uint32_t param = 0; param < setup.model.params.size(); ++param)
        for (const std::string& state : kStates) {
          if (!has(setup.model, param, state)) continue;
          const auto& values = stored.at(setup.model.params[param].name + " " + state);
          for (std::uint64_t i = 0; i < values.size(); ++i) {
            float value = written(state, param, i);
            if (narrow && state == "momentum_buffer")
              value = formats::bf16_to_f32(formats::f32_to_bf16(value));
            if (values[i] != value) return Error{Code::state, what + ": another " + state};
          }
        }
      EXPECT_EQ(not_as_stored(engine, setup.model, stored), "") << what;
      EBB_TRY(engine.install_weights());
      EBB_TRY(step_to(rank, 3));
      EBB_TRY_ASSIGN(const Stored behind, rank.stored());
      EBB_TRY_ASSIGN(const auto pinned, engine.open_export());
      EBB_TRY_ASSIGN(const auto checkpoint, pinned.describe());
      EBB_TRY_ASSIGN(const auto taken, formats::counted_steps(*checkpoint));
      for (const auto& param : setup.model.params) EXPECT_EQ(taken.at(param.name), 41 + 2) << what;
      if (ranks.rank() == Rank{0}) last = behind;
      return {};
    }));
    if (narrow) continue;
    const bool apart = what == "AdamW alone" || what == "an element";
    Stored& other = wanted[apart ? what : std::string()];
    if (other.empty()) other = last;
    EXPECT_EQ(last, other) << what;
  }
}

TEST(StateByName, OfADeviceWhoseEventsComeLate) {
  for (const libmuon::Side wire : {libmuon::Side::host, libmuon::Side::device}) {
    const TempDir folder;
    World world(disk(), folder.path(), 2);
    LateAccelerator accelerator(5, 30);
    Training setup{.ranks = 2, .gradients = Policy::zero3, .weights = Policy::zero3};
    setup.chunk_bytes = 20000;
    setup.budget_bytes = kLittle;
    setup.accelerator = &accelerator;
    setup.wire = wire;
    setup.dtypes = {{"momentum_buffer", DType::bf16}};
    const auto config = config_of(setup, setup.model);
    expect_well(world.run([&](Communicator& real) -> Result<> {
      HostRanks on_host(real);
      Communicator& ranks =
          wire == libmuon::Side::host ? static_cast<Communicator&>(on_host) : real;
      EBB_TRY_ASSIGN(auto rank, RankEngine::open(world, ranks, config));
      EBB_TRY(step_to(rank, 2));
      ByName momentum = copied_of(rank.engine(), setup.model, "momentum_buffer");
      EBB_TRY(rank.engine().read_state("momentum_buffer", momentum.buffers()));
      momentum.for_all([](std::uint32_t, std::uint64_t, float& value) { value *= 2; });
      EBB_TRY(rank.engine().write_state("momentum_buffer", momentum.buffers()));
      EBB_TRY_ASSIGN(const Stored stored, rank.stored());
      EXPECT_EQ(not_as_stored(rank.engine(), setup.model, stored), "");
      momentum.for_all([&](std::uint32_t param, std::uint64_t i, float value) {
        EXPECT_EQ(value, stored.at(setup.model.params[param].name + " momentum_buffer")[i]);
      });
      return {};
    }));
  }
}

// --- disks that fail ---

libmuon::EngineConfig paged(const libmuon::StateDTypes& dtypes = {}) {
  Training setup{.ranks = 2, .gradients = Policy::zero3, .weights = Policy::zero3};
  setup.chunk_bytes = 20000;
  setup.budget_bytes = kLittle;
  setup.dtypes = dtypes;
  return config_of(setup, dtypes.empty() ? setup.model : with_bf16_weights(setup.model));
}

// In how many portions the momentum of a model goes to its trainers.
Result<int> portions_of_momentum(const libmuon::ModelSpec& model, DType weights) {
  const TempDir folder;
  libswap::Trace trace;
  Training setup{.ranks = 4, .gradients = Policy::rows, .weights = Policy::rows};
  setup.model = weights == DType::bf16 ? with_bf16_weights(model) : model;
  World world(disk(), folder.path(), setup.ranks);
  auto config = config_of(setup, setup.model);
  config.trace = &trace;
  for (const Result<>& answer : world.run([&](Communicator& ranks) -> Result<> {
         EBB_TRY_ASSIGN(auto rank, RankEngine::open(world, ranks, config));
         ByName copied = copied_of(rank.engine(), setup.model, "momentum_buffer");
         return rank.engine().read_state("momentum_buffer", copied.buffers());
       }))
    EBB_TRY(answer);
  int portions = 0;
  for (const auto& event : test_support::chrome_events(trace.to_chrome_json()))
    portions += event.process == 0 && event.name == "state out" ? 1 : 0;
  return portions;
}

// The rank that owns the row alone stages little, and has room for little.
TEST(StateByName, TravelsInAsFewPortionsWhereASmallMatrixHasAnOwnerOfItsOwn) {
  libmuon::ModelSpec model = nuisance_model();
  for (const DType weights : {DType::f32, DType::bf16}) {
    model.params = {{"large", {400, 48}, 0}};
    const auto alone = portions_of_momentum(model, weights);
    model.params.push_back({"a row", {1, 48}, 0});
    const auto beside = portions_of_momentum(model, weights);
    ASSERT_TRUE(alone && beside);
    EXPECT_GT(*alone, 0);
    EXPECT_EQ(*beside, *alone) << name_of(weights);
  }
}

struct Failing {
  std::string state;
  libmuon::StateDTypes dtypes;
};
const std::array<Failing, 2> kFailing = {Failing{"momentum_buffer", {}},
                                         Failing{"master", kHalves}};

TEST(StateByName, ThatCannotBeReadIsAskedForAgain) {
  for (const auto& [state, dtypes] : kFailing) {
    std::uint64_t failed = 0;
    for (std::uint64_t at = 0; at < 12; at += 2) {
      const TempDir folder;
      FailingWorld failing(folder);
      const auto config = paged(dtypes);
      expect_well(failing.world.run([&, &state = state](Communicator& ranks) -> Result<> {
        EBB_TRY_ASSIGN(auto rank, RankEngine::open(failing.world, ranks, config));
        EBB_TRY(step_to(rank, 2));
        EBB_TRY_ASSIGN(const Stored stored, rank.stored());
        EBB_TRY(failing.meanwhile(ranks, [&] {
          failing.faults->add({.on = FaultOn::read,
                               .at = at,
                               .count = FaultPlan::kForEver,
                               .path_part = "rank-00001"});
        }));
        ByName copied = copied_of(rank.engine(), config.model, state);
        const auto read = rank.engine().read_state(state, copied.buffers());
        EBB_TRY(failing.meanwhile(ranks, [&] { failing.faults->clear(); }));
        if (!read && ranks.rank() == Rank{0}) ++failed;
        EXPECT_EQ(not_as_stored(rank.engine(), config.model, stored), "");
        return step_to(rank, 3);
      }));
    }
    EXPECT_GT(failed, 2u) << state;
  }
}

// Behind a write that failed.
Result<> expect_only_the_way_back(FailingWorld& failing, Communicator& ranks, RankEngine& rank,
                                  const std::string& state, std::span<const StateBuffer> buffers,
                                  libswap::SwapDirectory& other) {
  libmuon::Engine& engine = rank.engine();
  expect_error(engine.snapshot(), Code::state, "snapshot");
  EBB_TRY(failing.meanwhile(ranks, [] {}));
  expect_error(engine.take_weights({}), Code::state, "take_weights");
  EBB_TRY(failing.meanwhile(ranks, [] {}));
  expect_error(engine.read_state(state, buffers), Code::state, "read_state");
  EBB_TRY(failing.meanwhile(ranks, [] {}));
  expect_error(engine.write_state(state, buffers), Code::state, "again");
  EBB_TRY(failing.meanwhile(ranks, [] {}));
  expect_error(engine.save_to(other), Code::state, "save_to");
  EBB_TRY(failing.meanwhile(ranks, [] {}));
  expect_error(rank.hand_in(3), Code::state, "a gradient");
  return engine.abandon_step();
}

void expect_half_written_goes_back(const Failing& of, FaultOn on, std::uint64_t at,
                                   std::uint64_t& failed) {
  const TempDir folder;
  FailingWorld failing(folder);
  auto other = libswap::SwapDirectory::open(failing.world.io(), folder.path() / "other");
  ASSERT_TRUE(other);
  const auto config = paged(of.dtypes);
  expect_well(failing.world.run([&](Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(failing.world, ranks, config));
    libmuon::Engine& engine = rank.engine();
    EBB_TRY(step_to(rank, 2));
    EBB_TRY_ASSIGN(const Stored stored, rank.stored());
    const std::vector<float> weights = rank.flat_weights();
    EBB_TRY(failing.meanwhile(ranks, [&] {
      failing.faults->add(
          {.on = on, .at = at, .count = FaultPlan::kForEver, .path_part = "rank-00001"});
    }));
    ByName copied = copied_of(engine, config.model, of.state);
    const auto wrote = engine.write_state(of.state, copied.buffers(), 99);
    EBB_TRY(failing.meanwhile(ranks, [&] { failing.faults->clear(); }));
    if (wrote) return {};
    if (ranks.rank() == Rank{0}) ++failed;
    EBB_TRY(expect_only_the_way_back(failing, ranks, rank, of.state, copied.buffers(), **other));
    EXPECT_EQ(not_as_stored(engine, config.model, stored), "");
    EXPECT_EQ(rank.flat_weights(), weights);
    return step_to(rank, 3);
  }));
}

TEST(StateByName, ThatIsHalfWrittenGoesBackAndNowhereElse) {
  for (const Failing& of : kFailing) {
    std::uint64_t failed = 0;
    for (const FaultOn on : {FaultOn::read, FaultOn::write})
      for (std::uint64_t at = 0; at < 6; ++at) expect_half_written_goes_back(of, on, at, failed);
    EXPECT_GT(failed, 6u) << of.state;
  }
}

// --- what is refused ---

TEST(StateByName, IsRefusedByNameBeforeAnythingChanges) {
  const TempDir folder;
  FailingWorld failing(folder);
  const auto config = paged();
  const auto& params = config.model.params;
  expect_well(failing.world.run([&](Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(failing.world, ranks, config));
    libmuon::Engine& engine = rank.engine();
    EBB_TRY(step_to(rank, 1));
    EBB_TRY_ASSIGN(const Stored before, rank.stored());
    const auto refused = [&](const std::string& state, std::vector<StateBuffer> buffers, Code code,
                             const std::string& what) {
      for (const bool writes : {false, true}) {
        const auto answer =
            writes ? engine.write_state(state, buffers) : engine.read_state(state, buffers);
        expect_error(answer, code, what);
        EXPECT_NE(answer.error().message.find(what), std::string::npos) << answer.error().message;
      }
    };
    ByName master = copied_of(engine, config.model, "master");
    const std::vector<StateBuffer> right(master.buffers().begin(), master.buffers().end());
    refused("velocity", right, Code::usage, "velocity");
    refused("exp_avg", right, Code::usage, "has no exp_avg");
    refused("master", {{static_cast<std::uint32_t>(params.size()), {}}}, Code::usage,
            "there is no parameter");
    std::vector<StateBuffer> wrong = right;
    wrong[0].pieces = wrong[0].pieces.sub(0, wrong[0].pieces.elems - 1);
    refused("master", wrong, Code::layout, "elements handed in");
    wrong = right;
    wrong[1].pieces.data = nullptr;
    refused("master", wrong, Code::usage, "at no address");
    wrong = right;
    wrong[1].pieces = wrong[1].pieces.as(DType::bf16);
    refused("master", wrong, Code::usage, "where F32 is wanted");
    wrong = right;
    wrong.push_back(right.front());
    refused("master", wrong, Code::usage, "is named twice");
    wrong = right;
    if (ranks.rank() == Rank{1}) wrong.pop_back();
    refused("master", wrong, Code::usage, "is not the same on all ranks");
    EBB_TRY_ASSIGN(const Stored behind, rank.stored());
    EXPECT_EQ(behind, before);
    EBB_TRY(engine.read_state("master", {}));
    return engine.write_state("master", {});
  }));
}

TEST(StateByName, TogetherAreNamedOnceAndOfTheSameParameters) {
  const TempDir folder;
  World world(disk(), folder.path(), 1);
  const auto config = config_of({.ranks = 1}, Training().model);
  expect_well(world.run([&](Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(world, ranks, config));
    auto& engine = rank.engine();
    const AllByName all = all_of(engine, config.model, true);
    const auto right = all.buffers();
    const auto refused = [&](std::vector<libmuon::StateBuffers> states, const std::string& what) {
      for (const auto& answer : {engine.read_states(states), engine.write_states(states)})
        EXPECT_TRUE(!answer && answer.error().message.find(what) != std::string::npos) << what;
    };
    refused({right[0], right[0]}, "master is named twice");
    const std::vector<StateBuffer> turned(right[1].buffers.rbegin(), right[1].buffers.rend());
    refused({right[0], {right[1].state, turned}}, "the same parameters");
    return engine.read_states(right);
  }));
}

TEST(StateByName, InBlocksOrOfAnotherShapeIsNotCopied) {
  const auto refuses = [](const libmuon::ModelSpec& model, const std::string& state,
                          const libmuon::StateDTypes& dtypes) {
    const TempDir folder;
    FailingWorld failing(folder);
    const Training setup{.ranks = 2, .dtypes = dtypes, .model = model};
    expect_well(failing.world.run([&](Communicator& ranks) -> Result<> {
      EBB_TRY_ASSIGN(auto rank,
                     RankEngine::open(failing.world, ranks, config_of(setup, setup.model)));
      const StateBuffer none;
      const auto read = rank.engine().read_state(state, {&none, 1});
      expect_error(read, Code::unsupported, state);
      EXPECT_NE(read.error().message.find(state), std::string::npos) << read.error().message;
      return {};
    }));
  };
  refuses(nuisance_model(), "momentum_buffer", {{"momentum_buffer", DType::i8}});
  auto model = nuisance_model();
  std::get<libmuon::MuonSpec>(model.groups[0]).second_moment = libmuon::SecondMoment::rows;
  refuses(model, "second_momentum_buffer", {});
}

}  // namespace
}  // namespace ebb::test
