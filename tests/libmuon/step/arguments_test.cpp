// Arguments that no caller should give and that types do not exclude: each is answered with an
// error that names it, none ends the process, and what was there before goes on.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <string>

#include "ebb/libmuon/kernels/kernels.h"
#include "tests/libmuon/support/failing_world.h"

namespace ebb::test {
namespace {

using libmuon::AdamSpec;
using libmuon::Communicator;
using libmuon::Engine;
using libmuon::EngineConfig;
using libmuon::HandIn;
using libmuon::MuonSpec;
using libmuon::Placement;
using libmuon::Side;

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();

World in_memory(std::uint32_t ranks) {
  return {libswap::make_memory_backend(libswap::MemoryDisk::create(kMuch)), "/swap", ranks};
}

EngineConfig plain() { return config_of(Training{.ranks = 2}, nuisance_model()); }
MuonSpec& muon(EngineConfig& config) { return std::get<MuonSpec>(config.model.groups[0]); }
AdamSpec& adam(EngineConfig& config) { return std::get<AdamSpec>(config.model.groups[1]); }
// What a caller makes of a number.
template <typename T>
void set(T& choice) {
  choice = static_cast<T>(99);
}

using Spoil = std::function<void(EngineConfig&)>;
struct Refused {
  Spoil spoil;
  Code code;
  std::string part;  // of the message
};

void expect_no_plan(const Refused& one) {
  EngineConfig config = plain();
  one.spoil(config);
  const auto plan = Engine::plan(config, Rank{0});
  ASSERT_FALSE(plan) << one.part;
  EXPECT_EQ(plan.error().code, one.code) << plan.error().message;
  EXPECT_NE(plan.error().message.find(one.part), std::string::npos) << plan.error().message;
}

TEST(Arguments, TileSizesThatNoStoreHasAreNamed) {
  for (const std::uint64_t bytes :
       {std::uint64_t{0}, std::uint64_t{4095}, std::uint64_t{1} << 40, std::uint64_t{1} << 63,
        (std::uint64_t{1} << 30) + 4096, ~std::uint64_t{0}, ~std::uint64_t{4095}})
    expect_no_plan({[=](EngineConfig& config) { config.tile_bytes = bytes; }, Code::usage,
                    compose("tile size {} is not", bytes)});
  expect_no_plan({[](EngineConfig& config) { config.tile_bytes = std::uint64_t{65} * 4096; },
                  Code::usage, "tiles of 266240 bytes"});
}

TEST(Arguments, StateThatNoPlanIsMadeOfIsNamed) {
  const auto shape = [](std::uint32_t param, const Shape& is) {
    return [=](EngineConfig& config) { config.model.params[param].shape = is; };
  };
  constexpr std::uint64_t kMany = std::uint64_t{1} << 21;
  for (const Refused& one : {
           Refused{shape(0, {std::uint64_t{1} << 40}), Code::limit, "the limit is 16777216"},
           Refused{shape(2, {kMany, kMany}), Code::limit, "the limit is 16777216"},
           Refused{shape(2, {kMany, 8, 8}), Code::limit, "2097152 stacked matrices"},
           Refused{shape(2, {kMany, 0, 8}), Code::layout, "no elements"},
           Refused{shape(2, {kMany << 20, kMany << 20}), Code::layout, "no elements"},
       })
    expect_no_plan(one);
  expect_no_plan({[](EngineConfig& config) {
                    config.model.params[2].shape = {kMany, 8};
                    muon(config).split = {libmuon::Split::Kind::heads,
                                          {static_cast<std::uint32_t>(kMany)}};
                  },
                  Code::limit, "of 2097152 parts"});
}

TEST(Arguments, ChoicesMadeOfNumbersAreNamed) {
  for (const Refused& one : std::vector<Refused>{
           {[](auto& config) { set(config.partition.placement); }, Code::usage, "placement = 99"},
           {[](auto& config) { set(config.partition.hand_in); }, Code::usage, "hand_in = 99"},
           {[](auto& config) { set(config.partial_sums); }, Code::usage, "partial_sums = 99"},
           {[](auto& config) { set(config.gradients_on); }, Code::usage, "gradients_on = 99"},
           {[](auto& config) { set(config.weights_on); }, Code::usage, "weights_on = 99"},
           {[](auto& config) { set(config.bf16.emplace()); }, Code::usage, "bf16 = 99"},
           {[](auto& config) { set(config.tiers["master"]); }, Code::usage, "tier of master = 99"},
           {[](auto& config) { set(config.partition.gradients.policy); }, Code::layout,
            "no partition policy 99"},
           {[](auto& config) {
              set(config.partition.weights.policy);
              config.partition.weights.owners = {1, 2, 3};
            },
            Code::layout, "no policy"},
           {[](auto& config) { set(config.model.params[1].gradient); }, Code::unsupported,
            "its gradient in no dtype"},
           {[](auto& config) { set(config.model.params[1].weight); }, Code::unsupported,
            "its weights in no dtype"},
           {[](auto& config) { set(config.dtypes["momentum_buffer"].emplace()); },
            Code::unsupported, "momentum_buffer cannot be kept as no dtype"},
       })
    expect_no_plan(one);
}

TEST(Arguments, WordsOfSettingsMadeOfNumbersAreNamed) {
  const auto muons = [](auto member) {
    return [member](EngineConfig& config) { set(muon(config).*member); };
  };
  for (const auto& [spoil, name] : std::vector<std::pair<Spoil, std::string>>{
           {muons(&MuonSpec::momentum), "momentum"},
           {muons(&MuonSpec::decay), "decay"},
           {muons(&MuonSpec::eps_rule), "eps_rule"},
           {muons(&MuonSpec::norm_of), "norm_of"},
           {muons(&MuonSpec::precision), "precision"},
           {muons(&MuonSpec::rounding), "rounding"},
           {muons(&MuonSpec::handed), "handed"},
           {muons(&MuonSpec::form), "form"},
           {muons(&MuonSpec::second_moment), "second_moment"},
           {muons(&MuonSpec::second_eps_rule), "second_eps_rule"},
           {muons(&MuonSpec::scale), "scale"},
           {muons(&MuonSpec::scale_of), "scale_of"},
           {muons(&MuonSpec::scale_rounding), "scale_rounding"},
           {muons(&MuonSpec::weights), "weights"},
           {muons(&MuonSpec::orientation), "orientation"},
           {muons(&MuonSpec::dims), "dims"},
           {muons(&MuonSpec::out), "out"},
           {[](EngineConfig& config) { set(muon(config).split.kind); }, "split"},
       })
    expect_no_plan({spoil, Code::usage, compose("setting {} = 99 is none of its values", name)});
}

TEST(Arguments, SettingsThatAreNotFiniteInFp32AreNamed) {
  for (const double bad : {-1.0, 1e39, 1e308, HUGE_VAL, kNan}) {
    for (const auto& [member, name] : {std::pair(&MuonSpec::lr, "lr"),
                                       {&MuonSpec::weight_decay, "weight_decay"},
                                       {&MuonSpec::scale_factor, "scale_factor"},
                                       {&MuonSpec::eps, "eps"},
                                       {&MuonSpec::norm_factor, "norm_factor"}})
      expect_no_plan({[=](EngineConfig& config) { muon(config).*member = bad; }, Code::usage,
                      compose("setting {} = ", name)});
    for (const auto& [member, name] : {std::pair(&AdamSpec::lr, "lr"),
                                       {&AdamSpec::weight_decay, "weight_decay"},
                                       {&AdamSpec::eps, "eps"}})
      expect_no_plan({[=](EngineConfig& config) { adam(config).*member = bad; }, Code::usage,
                      compose("setting {} = ", name)});
  }
  const auto muons = [](double lr, double decay, double factor) {
    return [=](EngineConfig& config) {
      muon(config).lr = lr;
      muon(config).weight_decay = decay;
      muon(config).scale_factor = factor;
    };
  };
  expect_no_plan({muons(1e20, 1e20, 1), Code::usage, "lr x weight_decay = 1e+40"});
  expect_no_plan({muons(1e20, 0, 1e20), Code::usage, "lr x scale_factor = 1e+40"});
  expect_no_plan({[&](EngineConfig& config) {
                    muons(1e15, 1e15, 1)(config);
                    muon(config).decay = libmuon::Decay::palm;
                  },
                  Code::usage, "lr x lr x weight_decay = "});
  expect_no_plan({[](EngineConfig& config) { adam(config).lr = 1e38, adam(config).beta1 = 0.999; },
                  Code::usage, "lr / (1 - beta1)"});
}

TEST(Arguments, NamesThatNoStoreCanHoldAreNamed) {
  const auto named = [](std::string name) {
    return [=](EngineConfig& config) { config.model.params[3].name = name; };
  };
  const std::string before(300, 'x');
  for (const std::size_t bytes : {std::size_t{65537}, std::size_t{1} << 20})
    expect_no_plan({named(std::string(bytes, 'x')), Code::limit,
                    compose("its name has {} bytes, the limit of a store is 65536", bytes)});
  for (const std::string name :
       {"\xff\xfe", "a\x80", "\xed\xa0\x80", "\xc0\xaf", "w.\xf5\x80\x80\x80", "cut off \xe2\x80"})
    expect_no_plan({named(name), Code::usage, "its name is not UTF-8"});
  expect_no_plan({[](EngineConfig& config) { config.model.params[0].shape = Shape(17, 1); },
                  Code::limit, "parameter emb has 17 dimensions"});
  expect_no_plan({[](EngineConfig& config) { config.model.groups.resize(65537, AdamSpec{}); },
                  Code::limit, "65537 groups"});
}

TEST(Arguments, NamesAndShapesAtTheLimitAreKept) {
  EngineConfig config = config_of(Training{.ranks = 1}, nuisance_model());
  config.model.params[3].name = std::string(65536, 'x');
  config.model.params[5].name = "\xce\xb2\xe2\x82\xac\xf0\x9f\x90\xb3";
  config.model.params[0].shape = Shape(15, 1);
  config.model.params[0].shape.push_back(888);
  World world = in_memory(1);
  for (const bool resumes : {false, true}) {
    expect_well(world.run([&](Communicator& ranks) -> Result<> {
      EBB_TRY_ASSIGN(auto rank, RankEngine::open(world, ranks, config));
      EXPECT_EQ(rank.engine().origin(),
                resumes ? "resumed the store at step 1" : "created at step 0");
      const std::string key(65536, 'k');
      if (resumes) {
        const ByteVector* const kept = rank.engine().blob(key);
        EXPECT_TRUE(kept != nullptr && *kept == ByteVector(4));
        return {};
      }
      EBB_TRY(rank.engine().set_blob(key, ByteVector(4)));
      EBB_TRY(step_to(rank, 1));
      EBB_TRY(rank.commit());
      return {};
    }));
    world.reopen(1);
  }
}

// A value whose key cannot be read again would take its generation with it.
TEST(Arguments, KeysOfValuesThatNoStoreCanHoldAreNamed) {
  World world = in_memory(1);
  expect_well(world.run([&](Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(auto rank,
                   RankEngine::open(world, ranks, config_of(Training{}, nuisance_model())));
    expect_error(rank.engine().set_blob(std::string(65537, 'k'), {}), Code::limit, "a long key");
    expect_error(rank.engine().set_blob("\xff", {}), Code::usage, "no UTF-8");
    EBB_TRY(step_to(rank, 1));
    EBB_TRY(rank.commit());
    return {};
  }));
}

TEST(Arguments, OfCallsAreNamedAndTheStepIsMadeAllTheSame) {
  const auto floats = [](const float* at, std::uint64_t count) {
    return libswap::buffer_of(std::span<const float>(at, count));
  };
  for (const HandIn hand_in : {HandIn::reduced, HandIn::added}) {
    World world = in_memory(1);
    expect_well(world.run([&](Communicator& ranks) -> Result<> {
      const auto config = config_of(Training{.hand_in = hand_in}, nuisance_model());
      EBB_TRY_ASSIGN(auto rank, RankEngine::open(world, ranks, config));
      Engine& engine = rank.engine();
      const std::uint64_t elems = rank.weights()[2].size();
      libswap::Buffer no_dtype = libswap::buffer_of(std::span<float>(rank.weights()[2]));
      set(no_dtype.dtype);
      const libswap::Buffer nowhere = floats(nullptr, elems);
      expect_error(engine.bind_weights(2, nowhere), Code::usage, "bind");
      expect_error(engine.bind_weights(2, no_dtype), Code::usage, "bind, no dtype");
      expect_error(engine.bind_weights(99, rank.weights()[0]), Code::usage, "bind 99");
      expect_error(engine.gradient_ready(2, nowhere), Code::usage, "ready");
      expect_error(engine.gradient_ready(2, no_dtype), Code::usage, "ready, no dtype");
      expect_error(engine.gradient_ready(2, floats(nullptr, 0)), Code::layout, "ready, none");
      expect_error(engine.add_gradient(2, nowhere), Code::usage, "add");
      auto how = libmuon::WithoutGradient::zero;
      set(how);
      expect_error(engine.no_gradient(2, how), Code::usage, "none of either kind");
      expect_error(engine.no_gradient(99, libmuon::WithoutGradient::zero), Code::usage, "none, 99");
      expect_error(engine.weights_ready(99), Code::usage, "weights of 99");
      expect_error(engine.set(0, "lr", 1e39), Code::usage, "lr");
      expect_error(engine.set(99, "lr", 1), Code::usage, "group 99");
      expect_error(engine.group(99), Code::usage, "group 99");
      EBB_TRY(step_to(rank, 1));
      return {};
    }));
  }
}

TEST(Arguments, InitialWeightsThatAreNotFiniteAreNamedAndNothingIsMade) {
  for (const bool halves : {false, true})
    for (const float bad : {std::nanf(""), HUGE_VALF, -HUGE_VALF}) {
      Training setup{.ranks = 2, .model = nuisance_model()};
      if (halves) {
        setup.model = with_bf16_weights(setup.model);
        setup.dtypes["master"] = DType::u16;
      }
      const auto config = config_of(setup, setup.model);
      World world = in_memory(2);
      const auto spoiled = [&](std::uint32_t param, FlatRange range, std::span<float> into) {
        noisy_weights(param, range, into);
        if (param == 5) into.back() = bad;
      };
      std::uint32_t named = 0;
      for (const auto& answer : world.run([&](Communicator& ranks) -> Result<> {
             EBB_TRY(Engine::open(config, ranks, world.io(), world.swap(), {.initial = spoiled}));
             return {};
           })) {
        ASSERT_FALSE(answer);
        if (answer.error().code == Code::peer) continue;
        ++named;
        EXPECT_EQ(answer.error().code, Code::usage) << answer.error().message;
        EXPECT_NE(answer.error().message.find("the initial weights of blk.0.up are not finite"),
                  std::string::npos)
            << answer.error().message;
      }
      EXPECT_GE(named, 1u);
      EXPECT_FALSE(world.swap().current());
    }
}

}  // namespace
}  // namespace ebb::test
