// What --explain-resume says of a catalog, by the rules beside each format.
#include "ebb/formats/catalog/resume.h"

#include <gtest/gtest.h>

#include <random>

#include "ebb/formats/registry.h"

namespace ebb::formats {
namespace {

using Random = std::mt19937_64;

void add(Catalog& catalog, std::string name, std::string state, Shape shape = {4, 6},
         DType dtype = DType::f32) {
  TensorEntry& tensor = catalog.tensors.emplace_back();
  tensor.name = std::move(name);
  tensor.state = std::move(state);
  tensor.shape = std::move(shape);
  tensor.dtype = dtype;
}

ResumeAnswer ask(std::string_view format, const Catalog& catalog, std::uint32_t world = 1) {
  return resume_answer(format_named(format)->resume_rules(), {catalog, world});
}

// With a group that says how its optimizer is set.
Catalog trained() {
  Catalog catalog;
  catalog.groups.push_back({"adamw", {{"lr", Value::of_real(0.1)}}, {"w"}});
  return catalog;
}

std::string param(std::size_t i) { return "layers." + std::to_string(i) + ".w"; }

TEST(ResumeRules, WeightsAloneAreOneVerdictInEveryFormat) {
  for (const Format* format : registered_formats())
    for (const char* state : {"param", "master", "buffer", "tensor"}) {
      Catalog catalog;
      catalog.files.push_back({".metadata", 1, std::nullopt});
      add(catalog, "w", state);
      catalog.groups.push_back({"", {}, {"w"}});
      const ResumeAnswer answer = ask(format->name(), catalog);
      EXPECT_FALSE(answer.resumable) << format->name() << " " << state;
      EXPECT_TRUE(answer.why.starts_with("weights only")) << format->name() << answer.why;
      EXPECT_EQ(answer.to, "");
      // SGD without momentum has no state, and says how it was set.
      catalog.groups[0].settings.emplace_back("lr", Value::of_real(0.1));
      EXPECT_FALSE(ask(format->name(), catalog).why.starts_with("weights only"));
    }
}

TEST(ResumeRulesOfDcp, NameParametersOfAnOptimizerThatHaveNoState) {
  for (unsigned seed = 0; seed < 100; ++seed) {
    Random random(seed);
    Catalog catalog = trained();
    catalog.files.push_back({".metadata", 1, std::nullopt});
    StateDictOptimizer optimizer;
    std::vector<std::string> without;
    const std::size_t params = 2 + random() % 8;
    for (std::size_t i = 0; i < params; ++i) {
      add(catalog, param(i), "param");
      optimizer.params.push_back(param(i));
      if (i == 0 || random() % 3 != 0)
        add(catalog, param(i), random() % 2 ? "exp_avg" : "step");
      else
        without.push_back(param(i));
    }
    catalog.parts.optimizers = {optimizer};
    const ResumeAnswer answer = ask("dcp", catalog, 3);
    ASSERT_EQ(answer.resumable, without.empty()) << seed;
    if (without.empty()) continue;
    EXPECT_NE(answer.why.find(std::to_string(without.size()) + " of the " + std::to_string(params) +
                              " parameters"),
              std::string::npos)
        << answer.why;
    EXPECT_NE(answer.why.find(without.front()), std::string::npos) << answer.why;
    EXPECT_NE(answer.why.find("allow_partial_load"), std::string::npos) << answer.why;
  }
}

// torch's loaders ask for each setting of each group; DeepSpeed sets the job's by those stored.
TEST(ResumeRules, StatesWithoutGroupsOrSettingsDoNotResume) {
  for (const char* format : {"dcp", "torch", "deepspeed", "deepspeed-universal"}) {
    const bool of_torch = std::string_view(format).find("deepspeed") == std::string_view::npos;
    Catalog catalog = trained();
    catalog.partition = "zero3 over 1 ranks";
    catalog.files.push_back({".metadata", 1, std::nullopt});
    add(catalog, "w", "param");
    add(catalog, "w", "exp_avg");
    EXPECT_TRUE(ask(format, catalog).resumable) << format;
    if (of_torch)
      catalog.groups.clear();
    else
      catalog.groups[0].settings.clear();
    const ResumeAnswer answer = ask(format, catalog);
    EXPECT_FALSE(answer.resumable) << format;
    EXPECT_NE(answer.why.find("settings (lr"), std::string::npos) << answer.why;
  }
}

TEST(ResumeRulesOfDcp, WithoutCommonMetadataNeedTheSameRanks) {
  Catalog catalog = trained();
  catalog.world = 2;
  add(catalog, "w", "exp_avg");
  EXPECT_TRUE(ask("dcp", catalog, 2).resumable);
  const ResumeAnswer other = ask("dcp", catalog, 3);
  EXPECT_FALSE(other.resumable);
  EXPECT_EQ(other.to, "dcp");
  EXPECT_NE(other.why.find("saved without collectives"), std::string::npos) << other.why;
}

TEST(ResumeRulesOfDcp, KnowThatTorchtitanDoesNotDealItsDataToOtherRanks) {
  struct Case {
    std::uint32_t saved, data_ranks, wanted;
    bool resumes;
  };
  // Model-parallel ranks may make up for the rest.
  for (const auto& [saved, data_ranks, wanted, resumes] : {Case{2, 2, 2, true},
                                                           {2, 2, 3, false},
                                                           {2, 2, 4, false},
                                                           {2, 2, 1, false},
                                                           {4, 2, 4, true},
                                                           {4, 2, 2, true},
                                                           {4, 2, 3, false},
                                                           {4, 0, 3, true}}) {
    Catalog catalog = trained();
    catalog.files.push_back({".metadata", 1, std::nullopt});
    catalog.world = saved;
    add(catalog, "w", "param");
    add(catalog, "w", "exp_avg");
    for (std::uint32_t rank = 0; rank < data_ranks; ++rank)
      catalog.values.push_back(
          {"dataloader.dp_rank_" + std::to_string(rank), {}, Value::of_int(1)});
    catalog.values.push_back({"dataloader.world_size", {}, Value::of_int(data_ranks)});
    const ResumeAnswer answer = ask("dcp", catalog, wanted);
    EXPECT_EQ(answer.resumable, resumes) << saved << " " << data_ranks << " " << wanted;
    if (!resumes) {
      EXPECT_NE(answer.why.find("exclude_from_loading dataloader"), std::string::npos);
      EXPECT_NE(answer.why.find(" on " + std::to_string(wanted) + " rank"), std::string::npos)
          << answer.why;
    }
  }
}

struct State {
  const char* name;
  Shape shape;
  DType dtype = DType::f32;
};

// A store of states that the engine keeps, all of them or some that it does not.
TEST(ResumeRulesOfEbb, SayYesOfTheEnginesOwnStatesAlone) {
  struct Case {
    std::vector<State> states;
    const char* because;  // "": it resumes
  };
  const std::vector<Case> cases = {
      {{{"momentum_buffer", {4, 6}}}, ""},
      {{{"momentum_buffer", {4, 6}, DType::bf16}}, ""},
      {{{"exp_avg", {4, 6}}, {"exp_avg_sq", {4, 6}}}, ""},
      {{{"momentum_buffer", {4, 6}}, {"second_momentum_buffer", {4, 1}}}, ""},
      {{{"momentum_buffer", {3, 4, 6}}}, "has the shape"},
      {{{"exp_avg", {4, 6}, DType::u8}, {"exp_avg_sq", {4, 6}}}, "is U8"},
      {{{"exp_avg_sq_row", {4}}, {"exp_avg_sq_col", {6}}}, "no state exp_avg_sq_"},
      {{{"exp_avg", {4, 6}}, {"exp_avg_sq", {4, 6}}, {"GG.0", {4, 4}}}, "no state GG.0"},
      {{{"exp_avg", {4, 6}}}, "neither momentum_buffer nor"},
      {{}, "neither momentum_buffer nor"}};
  for (const auto& [states, because] : cases) {
    Catalog catalog;
    add(catalog, "good", "master");
    add(catalog, "good", "momentum_buffer");
    add(catalog, "w", states.size() % 2 == 0 ? "master" : "param");
    for (const State& state : states) add(catalog, "w", state.name, state.shape, state.dtype);
    catalog.groups.push_back({"muon", {{"lr", Value::of_real(0.1)}}, {"good", "w"}});
    const ResumeAnswer answer = ask("ebb", catalog, 3);
    EXPECT_EQ(answer.resumable, std::string_view(because).empty()) << answer.why;
    EXPECT_NE(answer.why.find(because), std::string::npos) << answer.why;
    if (*because != '\0') {
      EXPECT_NE(answer.why.find("w"), std::string::npos);
    }
  }
}

}  // namespace
}  // namespace ebb::formats
