// What an engine begins from, and what becomes of the store that lies there already.
#include <gtest/gtest.h>

#include <array>
#include <limits>

#include "ebb/formats/core/bf16.h"
#include "tests/libmuon/support/bound_masters.h"
#include "tests/libmuon/support/failing_world.h"

namespace ebb::test {
namespace {

using libmuon::Begin;
using libmuon::Communicator;
using libmuon::OldStore;
using libmuon::Placement;
using libmuon::Start;
using libswap::FaultOn;
using libswap::FaultPlan;

float noisy_weight(std::uint32_t param, std::uint64_t element) {
  float value = 0;
  noisy_weights(param, {element, 1}, {&value, 1});
  return value;
}
float in_bf16(float value) { return formats::bf16_to_f32(formats::f32_to_bf16(value)); }

float half_or_more(std::uint32_t, std::uint64_t element) { return element % 2 == 0 ? 0.5f : 1.5f; }

libmuon::EngineConfig config_for(std::uint32_t ranks, Policy policy, Placement placement,
                                 const libmuon::ModelSpec& model) {
  return config_of({.ranks = ranks,
                    .gradients = policy,
                    .weights = policy,
                    .placement = placement,
                    .chunk_bytes = 20000,
                    .budget_bytes = kLittle},
                   model);
}

// HSDP: each shard is on two of four ranks.
libmuon::EngineConfig two_copies(const libmuon::ModelSpec& model, Placement placement) {
  auto config = config_for(4, Policy::zero3, placement, model);
  for (auto* const spec : {&config.partition.gradients, &config.partition.weights})
    spec->mesh = {2, 2};
  config.budget_bytes = kLittle;
  add_what_tiles_need_beside(config);
  return config;
}

// --- bound weights ---

void expect_bound(const libmuon::EngineConfig& config, std::uint32_t ranks_count) {
  const TempDir folder;
  World world(disk(), folder.path(), ranks_count);
  expect_well(world.run([&](Communicator& ranks) -> Result<> {
    const auto value = [&](std::uint32_t param, std::uint64_t element) {
      const float weight = noisy_weight(param, element);
      return config.model.params[param].weight == DType::bf16 ? in_bf16(weight) : weight;
    };
    EBB_TRY_ASSIGN(auto rank, RankEngine::open_bound(world, ranks, config, value));
    EXPECT_EQ(rank.engine().origin().substr(0, 7), "created");
    EBB_TRY(rank.engine().install_weights());
    EBB_TRY_ASSIGN(const Stored stored, rank.stored());
    for (std::uint32_t param = 0; param < config.model.params.size(); ++param) {
      const auto& master = stored.at(config.model.params[param].name + " master");
      for (std::uint64_t i = 0; i < master.size(); ++i)
        if (master[i] != value(param, i))
          return Error{Code::state, config.model.params[param].name + " begins otherwise"};
    }
    return step_to(rank, 2);
  }));
}

TEST(Begins, WithBoundWeightsOfWhichEachRankHasItsOwn) {
  for (const Placement placement : kPlacements)
    for (const bool bf16 : {false, true}) {
      const auto model = bf16 ? with_bf16_weights(nuisance_model()) : nuisance_model();
      for (const Policy policy : {Policy::zero3, Policy::rows, Policy::replicated})
        expect_bound(config_for(2, policy, placement, model), 2);
      expect_bound(two_copies(model, placement), 4);
      auto halves = config_for(2, Policy::zero3, placement, model_in_halves());
      halves.dtypes = kHalves;
      expect_bound(halves, 2);
    }
}

// What the store has goes on, what is new begins with what is bound.
TEST(Begins, WithBoundWeightsOfWhatIsNewBesideAStore) {
  for (const bool halves : {false, true}) {
    const TempDir folder;
    FailingWorld failing(folder);
    auto model = halves ? model_in_halves() : nuisance_model();
    auto config = config_for(2, Policy::zero3, Placement::owner, model);
    if (halves) config.dtypes = kHalves;
    Stored before;
    expect_well(failing.world.run([&](Communicator& ranks) -> Result<> {
      EBB_TRY_ASSIGN(auto rank, RankEngine::open(failing.world, ranks, config));
      EBB_TRY(step_to(rank, 2));
      EBB_TRY_ASSIGN(const Stored stored, rank.stored());
      if (ranks.rank() == Rank{0}) before = stored;
      return {};
    }));
    config.model.params.push_back({"new.matrix", {20, 12}, 0});
    config.model.params.push_back({"new.vector", {700}, 1});
    if (halves)
      for (auto& param : config.model.params) param.weight = DType::bf16;
    config = [&] {
      auto wider = config_for(2, Policy::zero3, Placement::owner, config.model);
      if (halves) wider.dtypes = kHalves;
      return wider;
    }();
    failing.world.reopen(2);
    expect_well(failing.world.run([&](Communicator& ranks) -> Result<> {
      EBB_TRY_ASSIGN(auto rank, RankEngine::open_bound(failing.world, ranks, config, half_or_more));
      EXPECT_EQ(rank.engine().step_count(), 2u);
      EBB_TRY(rank.engine().install_weights());
      EBB_TRY_ASSIGN(const Stored stored, rank.stored());
      for (const auto& [name, values] : before) EXPECT_EQ(stored.at(name), values) << name;
      for (const auto& name : {"new.matrix master", "new.vector master"}) {
        const auto& master = stored.at(name);
        for (std::uint64_t i = 0; i < master.size(); ++i) EXPECT_EQ(master[i], half_or_more(0, i));
      }
      return step_to(rank, 3);
    }));
  }
}

TEST(Begins, WithoutBoundWeightsThatAreNotFiniteOrNotTheModels) {
  const TempDir folder;
  FailingWorld failing(folder);
  const auto config = config_for(2, Policy::zero3, Placement::owner, nuisance_model());
  const auto spoiled = [](std::uint32_t param, std::uint64_t element) {
    return param == 1 && element == 0 ? std::numeric_limits<float>::quiet_NaN() : 1.0f;
  };
  const auto answers = failing.world.run([&](Communicator& ranks) -> Result<> {
    EBB_TRY(RankEngine::open_bound(failing.world, ranks, config, spoiled));
    return {};
  });
  expect_error(answers[0], Code::usage, "NaN");  // who has that row
  expect_error(answers[1], Code::peer, "NaN");
  failing.world.reopen(2);
  EXPECT_FALSE(failing.world.swap().current());
  const std::vector<libswap::Buffer> few(1);
  for (const auto& answer : failing.world.run([&](Communicator& ranks) -> Result<> {
         EBB_TRY(libmuon::Engine::open(config, ranks, failing.world.io(), failing.world.swap(),
                                       {.weights = few}));
         return {};
       }))
    expect_error(answer, Code::usage, "one buffer");
}

// --- the store that lies there ---

struct Lies {
  const TempDir folder;
  FailingWorld failing{folder};
  libmuon::EngineConfig config = config_for(2, Policy::zero3, Placement::owner, nuisance_model());
  libswap::Uuid uuid{};

  // Trained to step 3, with a snapshot there.
  Lies() {
    expect_well(failing.world.run([&](Communicator& ranks) -> Result<> {
      EBB_TRY_ASSIGN(auto rank, RankEngine::open(failing.world, ranks, config));
      EBB_TRY(step_to(rank, 3));
      return rank.commit() ? Result<>() : Error{Code::state, "no snapshot"};
    }));
    reopen();
    uuid = failing.world.swap().current()->uuid;
  }
  void reopen(std::uint32_t ranks = 2) { failing.world.reopen(ranks); }

  // Both ranks open; what the first one answered: its origin, or the error.
  Result<std::string> open(const Start& start) {
    std::string origin;
    const auto answers = failing.world.run([&](Communicator& ranks) -> Result<> {
      EBB_TRY_ASSIGN(auto engine, libmuon::Engine::open(config, ranks, failing.world.io(),
                                                        failing.world.swap(), start));
      if (ranks.rank() == Rank{0}) origin = engine->origin();
      return {};
    });
    const bool failed = !answers[0];
    failing.world.reconnect();
    if (failed) return answers[0].error();
    return origin;
  }
  std::string origin(const Start& start) {
    const auto opened = open(start);
    EXPECT_TRUE(opened) << opened.error().message;
    return opened ? *opened : "";
  }
};

TEST(Begins, WithTheStoreOrWhatIsGivenAsItIsTold) {
  Lies lies;
  EXPECT_EQ(lies.origin({.initial = noisy_weights}), "resumed the store at step 3");
  EXPECT_EQ(lies.origin({.begin = Begin::store}), "resumed the store at step 3");
  EXPECT_EQ(lies.origin({.begin = Begin::given, .initial = noisy_weights}), "created at step 0");
  lies.reopen();
  ASSERT_TRUE(lies.failing.world.swap().current());
  EXPECT_NE(lies.failing.world.swap().current()->uuid, lies.uuid);  // and nothing else is there
  EXPECT_EQ(lies.origin({.begin = Begin::store}), "resumed the store at step 0");

  Lies dropped;
  EXPECT_EQ(
      dropped.origin(
          {.begin = Begin::given, .old_store = OldStore::dropped_first, .initial = noisy_weights}),
      "created at step 0");
}

// Ranks that are threads share the directory.
TEST(Begins, WithNoStoreWhereItWasDroppedWhicheverRankWasFirst) {
  for (int trial = 0; trial < 20; ++trial) {
    Lies lies;
    for (const auto& dropped : lies.failing.world.run(
             [&](Communicator& ranks) { return lies.failing.world.swap().drop(ranks); }))
      EXPECT_TRUE(dropped);
    lies.reopen();
    ASSERT_FALSE(lies.failing.world.swap().current()) << trial;
  }
}

// What can be refused is refused before the old store goes.
TEST(Begins, WithWhatIsGivenAndKeepsTheOldStoreWhereThatCannotBe) {
  Lies lies;
  const auto spoiled = [](std::uint32_t, std::uint64_t) {
    return std::numeric_limits<float>::quiet_NaN();
  };
  for (const auto& answer : lies.failing.world.run([&](Communicator& ranks) -> Result<> {
         EBB_TRY(
             RankEngine::open_bound(lies.failing.world, ranks, lies.config, spoiled,
                                    {.begin = Begin::given, .old_store = OldStore::dropped_first}));
         return {};
       }))
    EXPECT_FALSE(answer);
  lies.reopen();
  EXPECT_EQ(lies.origin({.begin = Begin::store}), "resumed the store at step 3");
}

// Whichever write fails: the old store is there until the new one is committed.
TEST(Begins, WithWhatIsGivenAndKeepsTheOldStoreUntilTheNewOneIsCommitted) {
  std::uint64_t kept = 0;
  for (std::uint64_t at = 0; at < 200; at += 7) {
    Lies lies;
    lies.failing.faults->add({.on = FaultOn::write, .at = at, .count = FaultPlan::kForEver});
    const auto opened = lies.open({.begin = Begin::given, .initial = noisy_weights});
    lies.failing.faults->clear();
    lies.reopen();
    ASSERT_TRUE(lies.failing.world.swap().current());
    EXPECT_EQ(lies.failing.world.swap().current()->uuid == lies.uuid, !opened) << at;
    kept += opened ? 0 : 1;
    if (opened) break;
    EXPECT_EQ(lies.origin({.begin = Begin::store}), "resumed the store at step 3");
  }
  EXPECT_GT(kept, 2u);
}

TEST(Begins, WithTheStoreThatIsExpectedAndNoOther) {
  Lies lies;
  const auto refused = [&](const Start& start, const std::string& what) {
    const auto opened = lies.open(start);
    expect_error(opened, Code::state, what);
    EXPECT_NE(opened.error().message.find(what), std::string::npos) << opened.error().message;
  };
  for (const std::uint64_t tile_bytes : {4096u, 8192u}) {  // resumed, and to be transferred
    lies.config.tile_bytes = tile_bytes;
    for (const Begin begin : {Begin::store_or_given, Begin::store}) {
      refused({.begin = begin, .expected = {.step = 2}, .initial = noisy_weights},
              "step 2 was expected, and there is store");
      refused({.begin = begin, .expected = {.generation = 9}, .initial = noisy_weights},
              "generation 9 was expected");
      refused({.begin = begin, .expected = {.uuid = libswap::Uuid{}}, .initial = noisy_weights},
              "was expected");
    }
    EXPECT_EQ(lies.failing.world.swap().current()->uuid, lies.uuid);
    const std::string origin = lies.origin(
        {.begin = Begin::store, .expected = {.uuid = lies.uuid, .generation = 2, .step = 3}});
    EXPECT_EQ(origin, tile_bytes == 4096 ? "resumed the store at step 3"
                                         : "transferred the store of 2 ranks at step 3");
  }
  FailingWorld empty;
  for (const auto& answer : empty.world.run([&](Communicator& ranks) -> Result<> {
         EBB_TRY(libmuon::Engine::open(lies.config, ranks, empty.world.io(), empty.world.swap(),
                                       {.expected = {.step = 3}, .initial = noisy_weights}));
         return {};
       }))
    expect_error(answer, Code::state, "no store");
}

TEST(Begins, WithNothingThatSaysTwoThingsAtOnce) {
  Lies lies;
  const auto refused = [&](const Start& start, const std::string& what) {
    const auto opened = lies.open(start);
    expect_error(opened, Code::usage, what);
    EXPECT_NE(opened.error().message.find(what), std::string::npos) << opened.error().message;
  };
  refused({.begin = Begin::given}, "neither a checkpoint nor weights");
  refused({.begin = Begin::given, .expected = {.step = 3}, .initial = noisy_weights},
          "Begin::given resumes none");
  refused({.old_store = OldStore::dropped_first, .initial = noisy_weights}, "dropped_first");
  refused({.begin = static_cast<Begin>(9), .initial = noisy_weights}, "none of its values");
  refused({.old_store = static_cast<OldStore>(9), .initial = noisy_weights}, "none of its values");
  EXPECT_EQ(lies.origin({.begin = Begin::store}), "resumed the store at step 3");
}

// A disk with room for one store and a half.
TEST(Begins, WithWhatIsGivenWhereBothStoresHaveNoRoom) {
  const auto config = config_for(1, Policy::replicated, Placement::owner, nuisance_model());
  const auto plan = libmuon::Engine::plan(config, Rank{0});
  ASSERT_TRUE(plan);
  World world(libswap::make_memory_backend(
                  libswap::MemoryDisk::create(plan->disk_bytes + plan->disk_bytes / 2)),
              "/swap", 1);
  const auto open = [&](const Start& start) {
    const auto answer = world.run([&](Communicator& ranks) -> Result<> {
      EBB_TRY(libmuon::Engine::open(config, ranks, world.io(), world.swap(), start));
      return {};
    })[0];
    world.reopen(1);
    return answer;
  };
  EXPECT_TRUE(open({.initial = noisy_weights}));
  const auto refused = open({.begin = Begin::given, .initial = noisy_weights});
  expect_error(refused, Code::no_space, "two stores");
  for (const std::string& what :
       {compose("needs {} bytes", plan->disk_bytes), std::string("are the store's that it is to")})
    EXPECT_NE(refused.error().message.find(what), std::string::npos) << refused.error().message;
  EXPECT_NE(refused.error().hint.find("OldStore::dropped_first"), std::string::npos);
  EXPECT_TRUE(open({.begin = Begin::store}));
  EXPECT_TRUE(open(
      {.begin = Begin::given, .old_store = OldStore::dropped_first, .initial = noisy_weights}));
}

}  // namespace
}  // namespace ebb::test
