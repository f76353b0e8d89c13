// Folders that are written: each part as the framework's loader wants it, in the optimizer's order,
// and what is not made up is said.
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <iterator>

#include "ebb/formats/catalog/resume.h"
#include "ebb/formats/conversion/convert.h"
#include "ebb/formats/describe.h"
#include "ebb/formats/registry.h"
#include "ebb/formats/state_dict/names.h"
#include "tests/formats/folders/folders_fixtures.h"
#include "tests/support/emit_in_memory.h"
#include "tests/support/expected.h"

namespace ebb {
namespace {

using folders_test::bytes_in;
using folders_test::digests_in;
using folders_test::load;
using folders_test::truth_of;
using formats::GroupOrder;
using formats::SaidOrder;
using Borders = SaidOrder::Borders;
using test_support::MemoryTree;
using Names = std::vector<std::string>;

// In the order in which Trainer gave them to the optimizer, and where its groups end.
const Names kDecay = {"emb.weight", "b.weight", "a.weight", "head.weight"};
const Names kNoDecay = {"b.bias", "head.bias"};

Names all_names() {
  Names all = kDecay;
  all.insert(all.end(), kNoDecay.begin(), kNoDecay.end());
  return all;
}

std::unique_ptr<Checkpoint> read(std::shared_ptr<const formats::SourceTree> tree,
                                 const formats::PartsSaid& said = {}) {
  auto checkpoint = formats::describe(std::move(tree), said);
  EXPECT_TRUE(checkpoint) << (checkpoint ? "" : checkpoint.error().message);
  return checkpoint ? *std::move(checkpoint) : nullptr;
}

struct Written {
  std::shared_ptr<MemoryTree> tree;
  std::unique_ptr<Checkpoint> checkpoint;
  std::vector<std::string> notes, dropped;
};

Result<Written> write(const Checkpoint& source, std::string_view to,
                      const SaidOrder* order = nullptr, std::uint32_t world = 1) {
  EBB_TRY_ASSIGN(formats::Conversion conversion,
                 formats::plan_conversion(
                     source, {.from = formats::format_of(source.catalog()),
                              .to = *formats::format_named(to),
                              .world = world,
                              .policy = world == 1 ? std::nullopt : std::optional(Policy::rows),
                              .order = order}));
  EBB_TRY_ASSIGN(auto tree,
                 test_support::carry_out(conversion.plan, *conversion.content, "written"));
  EBB_TRY_ASSIGN(auto checkpoint, formats::describe(tree));
  return Written{std::move(tree), std::move(checkpoint), std::move(conversion.plan.notes),
                 std::move(conversion.plan.dropped)};
}

bool mentions(const std::vector<std::string>& lines, std::string_view part) {
  return std::ranges::any_of(
      lines, [&](const std::string& line) { return line.find(part) != std::string::npos; });
}

std::string text_in(const MemoryTree& tree, std::string_view file) {
  const ByteVector bytes = bytes_in(tree, file);
  return std::string(formats::text_of(bytes));
}

const Value* written_value(const Catalog& catalog, std::string_view key) {
  const auto found = std::ranges::find(catalog.values, key, &ValueEntry::key);
  return found == catalog.values.end() ? nullptr : &found->value;
}

std::vector<std::int64_t> numbers_in(const Catalog& catalog, std::string_view key) {
  std::vector<std::int64_t> numbers;
  if (const Value* list = written_value(catalog, key))
    for (const Value& item : list->items) numbers.push_back(item.integer);
  return numbers;
}

// What a Trainer loads is numbered as before, whether names are known or not.
TEST(WrittenTrainerFolder, KeepsTheNumbersOfATrainers) {
  formats::PartsSaid named;
  named.names = all_names();
  for (const formats::PartsSaid& said : {formats::PartsSaid{}, named}) {
    const auto source = read(load("trainer"), said);
    ASSERT_NE(source, nullptr);
    EXPECT_EQ(source->catalog().grouped, GroupOrder::of_the_optimizer);
    const auto written = write(*source, "transformers");
    ASSERT_TRUE(written) << written.error().message;
    EXPECT_TRUE(written->dropped.empty()) << written->dropped.front();
    const Catalog& catalog = written->checkpoint->catalog();
    EXPECT_EQ(catalog.format, "transformers");
    EXPECT_EQ(catalog.step, 2);
    EXPECT_EQ(digests_in(*written->checkpoint),
              said.names ? truth_of("trainer") : digests_in(*source));
    EXPECT_EQ(numbers_in(catalog, "optimizer.param_groups.0.params"),
              (std::vector<std::int64_t>{0, 1, 2, 3}));
    EXPECT_EQ(numbers_in(catalog, "optimizer.param_groups.1.params"),
              (std::vector<std::int64_t>{4, 5}));
    EXPECT_EQ(written_value(catalog, "optimizer.param_groups.0.param_names") != nullptr,
              said.names.has_value())
        << "names that are known are recorded";
    EXPECT_EQ(written_value(catalog, "optimizer.param_groups.0.optimizer"), nullptr)
        << "what the settings tell is not said twice";
  }
}

TEST(WrittenTrainerFolder, HasTheRandomNumbersAsTheyWere) {
  const auto source = read(load("trainer"));
  ASSERT_NE(source, nullptr);
  for (const char* through : {"transformers", "dcp"}) {
    const auto there = write(*source, through);
    ASSERT_TRUE(there) << there.error().message;
    const auto written = write(*there->checkpoint, "transformers");
    ASSERT_TRUE(written) << written.error().message;
    EXPECT_NE(written->tree->find("rng_state.pth"), nullptr) << through;
    for (const char* key : {"rng_state.numpy", "rng_state.cpu"}) {
      const Value* was = written_value(source->catalog(), key);
      const Value* is = written_value(written->checkpoint->catalog(), key);
      ASSERT_TRUE(was != nullptr && is != nullptr) << key;
      EXPECT_EQ(to_json(*is), to_json(*was)) << through;
    }
  }
}

// A loader that finds one of them and not the others fails.
TEST(WrittenTrainerFolder, HasNoHalfOfTheRandomNumbers) {
  const auto whole = read(load("trainer"));
  ASSERT_NE(whole, nullptr);
  const auto plain = write(*whole, "torch");  // weights_only takes no array
  ASSERT_TRUE(plain) << plain.error().message;
  const std::unique_ptr<Checkpoint>& source = plain->checkpoint;
  const auto written = write(*source, "transformers");
  ASSERT_TRUE(written) << written.error().message;
  for (const char* file :
       {"optimizer.pt", "model.safetensors", "scheduler.pt", "trainer_state.json"})
    EXPECT_NE(written->tree->find(file), nullptr) << file;
  for (const char* file : {"rng_state.pth", "training_args.bin"})
    EXPECT_EQ(written->tree->find(file), nullptr) << file;
  EXPECT_TRUE(mentions(written->notes, "\"rng_state\" is not written"));
}

TEST(WrittenTrainerFolder, HasTheStateOfTheTrainerAsPythonWritesIt) {
  const auto source = read(load("fsdp_sharded"));
  ASSERT_NE(source, nullptr);
  const auto written = write(*source, "transformers");
  ASSERT_TRUE(written) << written.error().message;
  const std::string state = text_in(*written->tree, "trainer_state.json");
  EXPECT_NE(state.find(R"("log_history": [{"loss": NaN, "step": 1}])"), std::string::npos) << state;
  EXPECT_NE(state.find(R"("global_step": 2)"), std::string::npos) << state;
  EXPECT_EQ(digests_in(*written->checkpoint), truth_of("fsdp_sharded"))
      << "the groups of FSDP list names in the optimizer's order";
}

// Without a state of a Trainer's: the least that Trainer resumes with, and what is missing is said.
TEST(WrittenTrainerFolder, OfAnotherJobHasTheStepAndSaysWhatIsMissing) {
  auto tree = load("fsdp_full");
  const auto source = read(folders_test::without(*tree, "scheduler.bin"));
  ASSERT_NE(source, nullptr);
  EXPECT_EQ(source->catalog().step, std::nullopt);
  const auto written = write(*source, "transformers");
  ASSERT_TRUE(written) << written.error().message;
  EXPECT_EQ(written->checkpoint->catalog().step, 2) << "as the parameters' counters say";
  const std::string state = text_in(*written->tree, "trainer_state.json");
  EXPECT_NE(state.find(R"("stateful_callbacks": {"TrainerControl": )"), std::string::npos) << state;
  EXPECT_TRUE(mentions(written->notes, "trainer_state.json has the step alone"));
  EXPECT_TRUE(mentions(written->notes, "scheduler.pt is not written"));
  EXPECT_TRUE(mentions(written->notes, "s.last_epoch = trainer.state.global_step = 2"));
}

// From names alone, as formats without an optimizer's lists have them.
class Ordered : public testing::Test {
 protected:
  void SetUp() override {
    formats::PartsSaid said;
    said.names = all_names();
    const auto trainer = read(load("trainer"), said);
    ASSERT_NE(trainer, nullptr);
    auto plain = write(*trainer, "safetensors");
    ASSERT_TRUE(plain) << plain.error().message;
    source_ = std::move(plain->checkpoint);
    tree_ = plain->tree;
  }

  static SaidOrder order(std::vector<Names> groups) {
    SaidOrder said{.groups = {},
                   .borders = groups.size() > 1 ? Borders::said : Borders::of_the_content,
                   .by = "--names"};
    for (Names& group : groups) said.groups.push_back({{}, {}, std::move(group)});
    return said;
  }
  std::string refusal(const SaidOrder& said) const {
    const auto written = write(*source_, "transformers", &said);
    return written ? "" : written.error().message;
  }

  std::unique_ptr<Checkpoint> source_;
  std::shared_ptr<MemoryTree> tree_;
};

TEST_F(Ordered, NothingTellsIt) {
  EXPECT_EQ(source_->catalog().grouped, GroupOrder::unknown);
  const auto written = write(*source_, "transformers");
  ASSERT_FALSE(written);
  EXPECT_EQ(written.error().code, Code::unsupported);
  for (const char* part : {"--names FILE", "trainer.model.named_parameters()",
                           "trainer.optimizer.param_groups", "--like CHECKPOINT"})
    EXPECT_NE(written.error().hint.find(part), std::string::npos) << written.error().hint;
}

TEST_F(Ordered, ItIsSaidWithOrWithoutGroups) {
  const std::vector<Names> ways[] = {{kDecay, kNoDecay}, {all_names()}};
  for (const auto& groups : ways) {
    const SaidOrder said = order(groups);
    const auto written = write(*source_, "transformers", &said);
    ASSERT_TRUE(written) << written.error().message;
    EXPECT_EQ(digests_in(*written->checkpoint), truth_of("trainer"));
    EXPECT_EQ(written->checkpoint->catalog().groups.at(0).params, kDecay);
    EXPECT_EQ(written->checkpoint->catalog().groups.at(1).params, kNoDecay);
  }
}

TEST_F(Ordered, ItMustFitTheContent) {
  Names swapped = all_names();
  std::swap(swapped.front(), swapped.back());
  EXPECT_NE(refusal(order({swapped})).find("'b.bias' is of a group that has ended"),
            std::string::npos)
      << refusal(order({swapped}));
  EXPECT_NE(refusal(order({kDecay})).find("'b.bias' is missing, which the optimizer has"),
            std::string::npos);
  EXPECT_NE(refusal(order({kDecay, kNoDecay, {"a.bias"}})).find("'a.bias': nothing says how"),
            std::string::npos);
  EXPECT_NE(refusal(order({kDecay, kNoDecay, {"no.weight"}})).find("is called 'no.weight'"),
            std::string::npos);
  EXPECT_NE(refusal(order({kDecay, kNoDecay, {"b.bias"}})).find("'b.bias' is there twice"),
            std::string::npos);
  Names mixed = kDecay;
  mixed.push_back(kNoDecay.front());
  EXPECT_NE(refusal(order({mixed, {kNoDecay.back()}})).find("differ in weight_decay"),
            std::string::npos);
}

// A group that the optimizer has in two is one with the same settings.
TEST_F(Ordered, GroupsMayBeCutWhereSettingsStay) {
  const SaidOrder said = order({{kDecay[0], kDecay[1]}, {kDecay[2], kDecay[3]}, kNoDecay});
  const auto written = write(*source_, "transformers", &said);
  ASSERT_TRUE(written) << written.error().message;
  EXPECT_EQ(written->checkpoint->catalog().groups.size(), 3u);
  EXPECT_EQ(digests_in(*written->checkpoint), truth_of("trainer"));
}

// The content as another's, with the names of its tensors and groups changed.
formats::ContentView renamed(const Checkpoint& source, const std::string& before,
                             const std::string& behind) {
  Catalog content = source.catalog();
  std::vector<formats::MadeOf> made_of;
  for (std::uint32_t i = 0; i < content.tensors.size(); ++i) {
    TensorEntry& tensor = content.tensors[i];
    tensor.name = before + tensor.name + behind;
    made_of.push_back({i});
  }
  for (formats::GroupEntry& group : content.groups)
    for (std::string& name : group.params) name = before + name + behind;
  content.grouped = GroupOrder::of_the_optimizer;
  return {source, std::move(content), std::move(made_of)};
}

// PEFT's names: Trainer looks for an adapter in a file of another name, and PEFT for how it is
// made.
TEST_F(Ordered, AnAdapterIsWrittenAsOne) {
  struct Case {
    std::string before, behind;
    bool adapter;
  };
  for (const auto& [before, behind, adapter] :
       {Case{"base_model.model.", ".lora_A.weight", true},
        Case{"base_model.model.", ".lora_A.default.weight", false},
        Case{"base_model.model.", ".base_layer.weight", false}}) {
    const auto written = write(renamed(*source_, before, behind), "transformers");
    ASSERT_TRUE(written) << written.error().message;
    const std::string file = adapter ? "adapter_model.safetensors" : "model.safetensors";
    EXPECT_NE(written->tree->find(file), nullptr) << behind;
    EXPECT_EQ(mentions(written->notes, "adapter_config.json"), adapter);
    const auto lacks = [&] {
      const auto read = formats::describe(written->tree);
      const Catalog& catalog = (*read)->catalog();
      const auto answer = resume_answer(formats::format_of(catalog).resume_rules(), {catalog, 1});
      return answer.why.find("adapter_config.json is missing") != std::string::npos;
    };
    EXPECT_EQ(lacks(), adapter) << behind;
    const ByteVector config(2, std::byte{'{'});
    written->tree->add("adapter_config.json", config);
    EXPECT_FALSE(lacks());
  }
}

// As FSDP1 leaves one, whose flat parameters are all in the first.
TEST_F(Ordered, AGroupOfNoneIsSaidToBeOne) {
  Catalog content = source_->catalog();
  content.groups.push_back(content.groups.front());
  content.groups.back().params.clear();
  content.grouped = GroupOrder::of_the_optimizer;
  std::vector<formats::MadeOf> made_of;
  for (std::uint32_t i = 0; i < content.tensors.size(); ++i) made_of.push_back({i});
  const auto written =
      write(formats::ContentView(*source_, content, std::move(made_of)), "transformers");
  ASSERT_TRUE(written) << written.error().message;
  EXPECT_TRUE(mentions(written->notes, "parameter group 2 has no parameters: a Trainer"));
  const SaidOrder said = order({kDecay, kNoDecay});
  EXPECT_FALSE(mentions(write(*source_, "transformers", &said)->notes, "has no parameters"));
}

TEST_F(Ordered, SettingsThatTheContentLacksAreTheOthers) {
  SaidOrder said = order({kDecay, kNoDecay});
  for (formats::GroupEntry& group : said.groups)
    group.settings = {{"lr", Value::of_real(7)}, {"of_the_other", Value::of_int(3)}};
  const auto written = write(*source_, "transformers", &said);
  ASSERT_TRUE(written) << written.error().message;
  const Value* lr = written_value(written->checkpoint->catalog(), "optimizer.param_groups.0.lr");
  ASSERT_NE(lr, nullptr);
  EXPECT_EQ(lr->real, 0) << "the content's own";
  EXPECT_NE(written_value(written->checkpoint->catalog(), "optimizer.param_groups.1.of_the_other"),
            nullptr);
}

TEST(WrittenFsdpFolder, IsTwoShardedCheckpointsUnderTheKeysOfTheLoaders) {
  formats::PartsSaid said;
  said.names = all_names();
  const auto source = read(load("trainer"), said);
  ASSERT_NE(source, nullptr);
  const auto written = write(*source, "accelerate-fsdp", nullptr, 2);
  ASSERT_TRUE(written) << written.error().message;
  EXPECT_EQ(digests_in(*written->checkpoint), truth_of("trainer"));
  EXPECT_EQ(written->checkpoint->catalog().format, "accelerate-fsdp");
  for (const char* file :
       {"pytorch_model_fsdp_0/.metadata", "pytorch_model_fsdp_0/__1_0.distcp",
        "optimizer_0/.metadata", "optimizer_0/__1_0.distcp", "scheduler.pt", "trainer_state.json"})
    EXPECT_NE(written->tree->find(file), nullptr) << file;
  EXPECT_EQ(written->checkpoint->catalog().groups.at(1).params, kNoDecay);
}

// As tests/fixtures/folders/make.py writes them down, in the optimizer's order.
Names lines_of(const std::string& file) {
  std::ifstream lines(std::string(EBB_FIXTURES) + "/folders/" + file);
  return {std::istream_iterator<std::string>(lines), {}};
}

// What FSDP's model lists, its loader wants; a Trainer saves one name of a tied parameter.
TEST(WrittenFsdpFolder, HasTiedParametersUnderEachName) {
  formats::PartsSaid said;
  said.names = lines_of("trainer_tied/names");
  const auto source = read(load("trainer_tied"), said);
  ASSERT_NE(source, nullptr);
  const auto truth = truth_of("trainer_tied");
  for (const char* through : {"", "dcp", "deepspeed", "ebb"}) {
    auto from = read(load("trainer_tied"), said);
    if (*through != '\0') {
      const auto there = write(*source, through);
      ASSERT_TRUE(there) << through << there.error().message;
      const bool numbered = formats::has_numbers(there->checkpoint->catalog());
      from = read(there->tree, numbered ? said : formats::PartsSaid());
    }
    ASSERT_NE(from, nullptr) << through;
    const auto written = write(*from, "accelerate-fsdp", nullptr, 2);
    ASSERT_TRUE(written) << through << written.error().message;
    EXPECT_EQ(digests_in(*written->checkpoint), truth) << through;
    const auto back = write(*written->checkpoint, "transformers");
    ASSERT_TRUE(back) << through << back.error().message;
    EXPECT_EQ(digests_in(*back->checkpoint), truth) << through;
  }
}

// Whether a name is another's follows from config.json alone.
TEST(WrittenFsdpFolder, HasOnlyTheTiesThatAreSaid) {
  formats::PartsSaid said;
  said.names = lines_of("trainer_tied/names");
  for (const char* config :
       {"{}", R"({"architectures": ["LlamaForCausalLM"]})",
        R"({"architectures": ["LlamaForCausalLM"], "tie_word_embeddings": false})",
        R"({"architectures": ["BertForMaskedLM"], "tie_word_embeddings": true})"}) {
    auto tree = load("trainer_tied");
    ByteVector& bytes = tree->bytes_of("config.json");
    bytes.clear();
    formats::append_text(bytes, config);
    const auto source = read(tree, said);
    ASSERT_NE(source, nullptr) << config;
    const auto written = write(*source, "accelerate-fsdp");
    ASSERT_TRUE(written) << config << written.error().message;
    EXPECT_FALSE(digests_in(*written->checkpoint).contains("lm_head.weight")) << config;
  }
}

TEST(WrittenFsdpFolder, OfAccelerateAloneHasItsOwnFiles) {
  const auto source = read(load("accelerate"));
  ASSERT_NE(source, nullptr);
  const auto written = write(*source, "accelerate-fsdp");
  ASSERT_TRUE(written) << written.error().message;
  EXPECT_NE(written->tree->find("scheduler.bin"), nullptr);
  EXPECT_EQ(written->tree->find("trainer_state.json"), nullptr);
  EXPECT_EQ(digests_in(*written->checkpoint), truth_of("accelerate"));
}

TEST(WrittenFsdpFolder, IsRefusedWhereNumbersHaveNoNames) {
  const auto source = read(load("trainer"));
  ASSERT_NE(source, nullptr);
  const auto written = write(*source, "accelerate-fsdp");
  ASSERT_FALSE(written);
  EXPECT_NE(written.error().hint.find("--names FILE"), std::string::npos);
}

// Through DCP and back: places of nothing - a schedule's {} - stay, or its loader fails.
TEST(WrittenFolders, ComeBackThroughOtherFormats) {
  for (const auto& [name, format] :
       {std::pair("trainer", "transformers"), std::pair("fsdp_sharded", "accelerate-fsdp"),
        std::pair("fsdp_full", "accelerate-fsdp")})
    for (const char* through : {"dcp", "torch"}) {
      const auto source = read(load(name));
      ASSERT_NE(source, nullptr);
      const auto there = write(*source, through);
      ASSERT_TRUE(there) << there.error().message;
      const auto back = write(*there->checkpoint, format);
      ASSERT_TRUE(back) << name << through << back.error().message;
      EXPECT_TRUE(back->dropped.empty()) << back->dropped.front();
      EXPECT_EQ(digests_in(*back->checkpoint), digests_in(*source)) << name << through;
      if (std::string_view(name) != "trainer") continue;
      const auto& read_back = back->checkpoint->catalog();
      EXPECT_TRUE(std::ranges::any_of(read_back.containers,
                                      [](const formats::ContainerEntry& entry) {
                                        return entry.path.size() == 3 &&
                                               entry.path.front() == formats::PathItem("scheduler");
                                      }))
          << through;
    }
}

// Neither a model alone nor two of them are such a folder.
TEST(WrittenFolders, HaveOneModelAndItsOptimizer) {
  const auto source = read(load("trainer"));
  ASSERT_NE(source, nullptr);
  for (const char* format : {"transformers", "accelerate-fsdp"}) {
    const auto alone = formats::plan_conversion(
        *source, {.from = formats::format_of(source->catalog()),
                  .to = *formats::format_named(format),
                  .policy = std::nullopt,
                  .wanted = [](const TensorEntry& tensor) { return tensor.state == "param"; }});
    ASSERT_FALSE(alone) << format;
    EXPECT_EQ(alone.error().code, Code::unsupported);
    EXPECT_NE(alone.error().message.find("the content has no optimizer"), std::string::npos)
        << alone.error().message;
  }
}

}  // namespace
}  // namespace ebb
