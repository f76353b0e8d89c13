#include "examples/gpt/settings.h"

#include <gtest/gtest.h>

#include "ebb/libmuon/spec/presets.h"
#include "examples/gpt/muon.h"
#include "examples/gpt/setup.h"

namespace ebb::gpt {
namespace {

Result<Settings> parse(const std::vector<std::string>& words,
                       std::optional<std::uint32_t> world = std::nullopt) {
  EBB_TRY_ASSIGN(const auto invocation, tools::parse_command_line(train_program(), words));
  return settings_from(invocation.arguments, world);
}

TEST(Settings, DefaultsAreFourRanksAQuarterAndTheLicenceTexts) {
  const auto settings = parse({"--swap", "state"});
  ASSERT_TRUE(settings) << settings.error().message;
  EXPECT_EQ(settings->swap.directories, std::vector<std::filesystem::path>{"state"});
  EXPECT_EQ(settings->ranks, 4u);
  EXPECT_EQ(settings->steps, 150u);
  EXPECT_EQ(settings->budget.kind, Budget::Kind::quarter);
  EXPECT_EQ(settings->tile_bytes, 65536u);
  EXPECT_FALSE(settings->text);
  EXPECT_FALSE(settings->exported);
}

TEST(Settings, AnExportNamesFormatFolderAndStep) {
  const auto settings = parse({"--swap", "s", "--export", "dcp:out/a:b", "--export-at", "30"});
  ASSERT_TRUE(settings) << settings.error().message;
  EXPECT_EQ(settings->exported->format, "dcp");
  EXPECT_EQ(settings->exported->directory, "out/a:b");
  EXPECT_EQ(settings->exported->step, 30u);
}

TEST(Settings, WrongValuesAreNamedWithTheirFlag) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{}, "--swap DIR is missing: where state is to live"},
      {{"--swap", "s", "--swap-weights", "0"}, "--swap-weights 0: wanted a number above zero"},
      {{"--swap", "s", "--swap-weights", "1", "2"}, "--swap names 1 directories, --swap-weights 2"},
      {{"--swap", "s", "--ranks", "5"},
       "--ranks 5: the 12 sequences of a step cannot be shared evenly"},
      {{"--swap", "s", "--budget", "half"},
       "--budget half: not a size such as 2MiB, nor quarter, nor all"},
      {{"--swap", "s", "--placement", "shards"}, "--placement shards: wanted owner or shard"},
      {{"--swap", "s", "--momentum", "int4"}, "--momentum int4: wanted fp32, bf16 or int8"},
      {{"--swap", "s", "--preset", "moonligh"}, "--preset: there is no preset moonligh"},
      {{"--swap", "s", "--lr", "fast"}, "--lr wants a number, not 'fast'"},
      {{"--swap", "s", "--lr", "0.02x"}, "--lr wants a number, not '0.02x'"},
      {{"--swap", "s", "--lr", "-1"}, "--lr -1: setting lr = -1 is outside [0, infinity) in fp32"},
      {{"--swap", "s", "--set", "beta"}, "--set beta: wanted NAME=VALUE, as in weight_decay=0.1"},
      {{"--swap", "s", "--set", "weight_decy=1"},
       "--set weight_decy=1: Muon has no setting weight_decy"},
      {{"--swap", "s", "--optimizer", "sgd"}, "--optimizer sgd: wanted muon or adamw"},
      {{"--swap", "s", "--optimizer", "adamw", "--preset", "torch"},
       "--preset torch: presets are Muon's, not AdamW's"},
      {{"--swap", "s", "--optimizer", "adamw", "--set", "beta=0.9"},
       "--set beta=0.9: AdamW has no setting beta"},
      {{"--swap", "s", "--width", "12"}, "--width 12: not a multiple of 8"},
      {{"--swap", "s", "--sequence", "0"}, "--sequence 0: wanted 1 to 8192"},
      {{"--swap", "s", "--decay-end", "0"}, "--decay-end 0: wanted at least 1"},
      {{"--swap", "s", "--set", "beta=1"}, "--set beta=1: setting beta = 1 is outside [0, 1)"},
      {{"--swap", "s", "--set", "out=update"},
       "--set out=update: this trainer has no masters that an update could be added to"},
      {{"--swap", "s", "--export", "dcp"}, "--export dcp: wanted FORMAT:DIR, as in dcp:checkpoint"},
      {{"--swap", "s", "--export", "tar:out"},
       "--export tar:out: no format 'tar' that can be written"},
      {{"--swap", "s", "--export", "dcp:out", "--export-at", "151"},
       "--export-at 151: training ends at step 150"},
      {{"--swap", "s", "t/", "t"}, "--swap t: named twice"},
      {{"--swap", "s", "t", "--export", "dcp:out"},
       "--export reads one directory, --swap names several"},
      {{"--swap", "s", "--peer-limit", "0"}, "--peer-limit 0: wanted 1 to 604800 seconds"},
      {{"--swap", "s", "--snapshot-every", "0"}, "--snapshot-every 0: wanted at least 1"},
  };
  for (const auto& [words, message] : cases) {
    const auto settings = parse(words);
    ASSERT_FALSE(settings) << message;
    EXPECT_EQ(settings.error().message, message);
    EXPECT_EQ(settings.error().code, Code::usage);
  }
}

TEST(Settings, ProcessesThatAreThereAreTheRanks) {
  EXPECT_EQ(parse({"--swap", "s"}, 3)->ranks, 3u);
  EXPECT_EQ(parse({"--swap", "s", "--ranks", "3"}, 3)->ranks, 3u);
  const auto refused = parse({"--swap", "s", "--ranks", "4"}, 3);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().message, "--ranks 4: there are 3 processes, each is a rank");
  EXPECT_FALSE(parse({"--swap", "s"}, 5)) << "twelve sequences on five";
}

TEST(Settings, RanksWaitHalfAnHourUnlessToldOtherwise) {
  EXPECT_EQ(parse({"--swap", "s"})->peer_limit, std::chrono::minutes(30));
  EXPECT_EQ(parse({"--swap", "s", "--peer-limit", "20"})->peer_limit, std::chrono::seconds(20));
}

TEST(Settings, MuonIsAPresetWithWhatIsChangedOfIt) {
  EXPECT_EQ(libmuon::to_group(std::get<libmuon::MuonSpec>(parse({"--swap", "s"})->matrices)),
            libmuon::to_group(libmuon::MuonSpec::keller()));
  const auto settings = parse({"--swap", "s", "--preset", "moonlight", "--lr", "0.004", "--set",
                               "weight_decay=0", "--set", "precision=fp32"});
  ASSERT_TRUE(settings) << settings.error().message;
  libmuon::MuonSpec wanted = *libmuon::preset("moonlight");
  wanted.lr = 0.004;
  wanted.weight_decay = 0;
  wanted.precision = libmuon::Precision::fp32;
  EXPECT_EQ(libmuon::to_group(std::get<libmuon::MuonSpec>(settings->matrices)),
            libmuon::to_group(wanted));
  EXPECT_EQ(parse({"--swap", "s", "--preset", "moonligh"}).error().hint, "did you mean moonlight?");
}

TEST(Settings, MatricesMayBeAdamWsWithItsOwnSettings) {
  const auto settings = parse({"--swap", "s", "--optimizer", "adamw", "--lr", "0.01", "--set",
                               "beta2=0.99", "--width", "64", "--sequence", "32"});
  ASSERT_TRUE(settings) << settings.error().message;
  const auto& adam = std::get<libmuon::AdamSpec>(settings->matrices);
  EXPECT_EQ(adam.lr, 0.01);
  EXPECT_EQ(adam.beta2, 0.99);
  EXPECT_EQ(settings->model.hidden, 256u);
  EXPECT_EQ(settings->model.sequence, 32u);
}

TEST(Settings, TheListOfPresetsSaysWhatEachSetsAndWhoseItIs) {
  const std::string list = preset_list();
  for (const libmuon::Preset& preset : libmuon::presets())
    EXPECT_NE(list.find(compose("{}: {}\n", preset.name, preset.source)), std::string::npos);
  EXPECT_NE(list.find(" momentum=sum nesterov=yes weight_decay=0.1 "), std::string::npos) << list;
}

TEST(Schedule, WarmsUpStaysAndComesDownByTheStepAlone) {
  EXPECT_DOUBLE_EQ(schedule(0, 150), 0.1);
  EXPECT_DOUBLE_EQ(schedule(9, 150), 1.0);
  EXPECT_DOUBLE_EQ(schedule(60, 150), 1.0);
  EXPECT_NEAR(schedule(105, 150), 0.525, 1e-12);
  EXPECT_NEAR(schedule(150, 150), 0.05, 1e-12);
  EXPECT_NEAR(schedule(100'000, 150), 0.05, 1e-12);
  EXPECT_DOUBLE_EQ(schedule(120, 300), 1.0);
  EXPECT_NEAR(schedule(300, 300), 0.05, 1e-12);
}

class Configs : public testing::Test {
 protected:
  Configs() : model_(*Model::make({})) {}
  Result<Predicted> predicted(const Budget& budget, std::uint32_t ranks) {
    Settings settings;
    settings.ranks = ranks;
    settings.budget = budget;
    EBB_TRY_ASSIGN(const auto engines, engine_configs(settings, model_, nullptr));
    return predict(engines, model_, Corpus());
  }
  Model model_;
};

TEST_F(Configs, AQuarterIsAtMostAQuarterOfTheStateForAnyRankCount) {
  for (const std::uint32_t ranks : {1u, 2u, 3u, 4u, 6u}) {
    const auto plan = predicted({Budget::Kind::quarter, 0}, ranks);
    ASSERT_TRUE(plan) << plan.error().message;
    EXPECT_LE(plan->frame_bytes, plan->state_bytes / 4) << ranks;
    EXPECT_GT(plan->step_read_bytes, plan->state_bytes / 2) << ranks;
  }
}

TEST_F(Configs, AllInMemoryPagesNothing) {
  const auto plan = predicted({Budget::Kind::all, 0}, 4);
  ASSERT_TRUE(plan) << plan.error().message;
  EXPECT_GE(plan->frame_bytes, plan->state_bytes);
  EXPECT_EQ(plan->step_read_bytes, 0u);
  EXPECT_EQ(plan->step_written_bytes, 0u);
}

TEST_F(Configs, StateIsTheSameSizeForAnyRankCount) {
  const auto alone = predicted({Budget::Kind::all, 0}, 1);
  ASSERT_TRUE(alone) << alone.error().message;
  std::uint64_t bytes = 0;
  for (const Parameter& parameter : model_.parameters)
    bytes += parameter.elems * sizeof(float) * (parameter.optimizer == Optimizer::muon ? 2 : 3);
  EXPECT_EQ(alone->state_bytes, bytes);
  EXPECT_EQ(predicted({Budget::Kind::all, 0}, 3)->state_bytes, bytes);
}

TEST_F(Configs, MomentumInBf16TakesTwoBytesAnElement) {
  Settings settings;
  settings.budget = {Budget::Kind::all, 0};
  settings.momentum = parse({"--swap", "s", "--momentum", "bf16"})->momentum;
  const auto engines = engine_configs(settings, model_, nullptr);
  ASSERT_TRUE(engines) << engines.error().message;
  std::uint64_t bytes = 0;
  for (const Parameter& parameter : model_.parameters)
    bytes += parameter.elems * (parameter.optimizer == Optimizer::muon ? 4 + 2 : 3 * 4);
  EXPECT_EQ(predict(*engines, model_, Corpus())->state_bytes, bytes);
}

// What is named can be typed: it works, and half of it does not.
TEST_F(Configs, ATooSmallBudgetIsRefusedWithTheOneToType) {
  for (const std::uint32_t ranks : {1u, 2u, 3u, 4u, 6u})
    for (const std::uint64_t tile : {4096u, 65536u, 1u << 20}) {
      Settings settings;
      settings.ranks = ranks;
      settings.tile_bytes = tile;
      settings.budget = {Budget::Kind::bytes, 1024};
      const auto refused = engine_configs(settings, model_, nullptr);
      ASSERT_FALSE(refused);
      EXPECT_EQ(refused.error().code, Code::no_memory);
      const std::string& message = refused.error().message;
      const std::string beginning = "--budget 1.0 KiB is too small: ";
      ASSERT_TRUE(message.starts_with(beginning)) << message;
      const std::string least =
          message.substr(beginning.size(), message.find(' ', beginning.size()) - beginning.size());
      EXPECT_TRUE(message.ends_with(compose(" is the smallest for {} together",
                                            ranks == 1 ? "1 rank" : compose("{} ranks", ranks))))
          << message;
      EXPECT_TRUE(refused.error().hint.starts_with("--budget " + least)) << refused.error().hint;
      settings.budget.bytes = tools::parse_size(least).value_or(0);
      const auto engines = engine_configs(settings, model_, nullptr);
      ASSERT_TRUE(engines) << engines.error().message;
      EXPECT_TRUE(predict(*engines, model_, Corpus())) << least;
      settings.budget.bytes /= 2;
      EXPECT_FALSE(engine_configs(settings, model_, nullptr)) << least;
    }
}

}  // namespace
}  // namespace ebb::gpt
