// Checkpoints of ranks that no DeepSpeed wrote: crafted ones whose files contradict each other, and
// files of two real saves in one folder. Numbers of the cases: tests/malformed.md.
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ebb/formats/deepspeed/deepspeed.h"
#include "ebb/formats/deepspeed/names.h"
#include "ebb/formats/torch/file_writer.h"
#include "tests/formats/deepspeed/made_content.h"
#include "tests/support/emit_in_memory.h"
#include "tests/support/source_tree.h"

namespace ebb {

namespace {

namespace fs = std::filesystem;
using formats::ZeroElems;
using test_support::MemoryTree;

// A stage 2 checkpoint in which every number can be wrong.
struct Crafted {
  std::vector<Shape> shapes = {{4}, {5}, {1}};
  std::vector<std::uint64_t> flats = {4, 4, 2};  // lean elements of each rank's masters
  std::vector<Value> paddings = {Value::of_int(0), Value::of_int(0), Value::of_int(2)};
  Value partition_count = Value::of_list({Value::of_int(3)});
  Value dp_world_size = Value::of_int(3);
};

const Catalog kNothing;

// Writes one file: `fill` gives the entries of the dict at its top.
void add_file(MemoryTree& tree, const std::string& name,
              const std::function<void(formats::TorchFileWriter&)>& fill) {
  formats::TorchFileWriter file(kNothing);
  file.dict([&] { fill(file); });
  EmitPlan plan;
  plan.files.push_back(file.finish(name, Rank{0}));
  const test_support::MadeContent none("made", DType::f32);
  const auto written = test_support::carry_out(plan, none, "one");
  EBB_CHECK(written.has_value());
  tree.add(name, (*written)->bytes_of(name));
}

void add_model(MemoryTree& tree, const Crafted& crafted) {
  add_file(tree, "t/mp_rank_00_model_states.pt", [&](auto& file) {
    file.entry("module", Value::of_dict());
    file.list("param_shapes", [&] {
      file.dict([&] {
        for (std::size_t i = 0; i < crafted.shapes.size(); ++i)
          file.entry("p" + std::to_string(i), [&] { file.torch_size(crafted.shapes[i]); });
      });
    });
    file.entry("dp_world_size", crafted.dp_world_size);
  });
}

void add_rank(MemoryTree& tree, const Crafted& crafted, std::size_t rank) {
  const std::string name = "t/zero_pp_rank_" + std::to_string(rank) + "_mp_rank_00_optim_states.pt";
  add_file(tree, name, [&](auto& file) {
    file.dict("optimizer_state_dict", [&] {
      file.entry("zero_stage", 2);
      file.entry("partition_count", crafted.partition_count);
      file.entry("group_paddings", Value::of_list({crafted.paddings[rank]}));
      file.list("single_partition_of_fp32_groups", [&] {
        const auto storage = file.add_storage(DType::f32, {ZeroElems{crafted.flats[rank]}});
        file.tensor(storage, 0, {crafted.flats[rank]});
      });
      file.dict("base_optimizer_state", [&] {
        file.entry("state", Value::of_dict());
        const Value params = Value::of_list({Value::of_int(0)});
        file.entry("param_groups", Value::of_list({Value::of_dict({{"params", params}})}));
      });
    });
  });
}

struct Answer {
  std::optional<Code> code;
  std::string message;  // "" when it was read and is whole
};
Answer answer_of(std::shared_ptr<const formats::SourceTree> tree) {
  const auto checkpoint = formats::describe_deepspeed(std::move(tree));
  if (!checkpoint) return {checkpoint.error().code, checkpoint.error().message};
  const auto covered = prove_coverage((*checkpoint)->catalog());
  if (!covered) return {covered.error().code, covered.error().message};
  return {};
}
Answer answer_of(const Crafted& crafted) {
  const auto tree = std::make_shared<MemoryTree>("ck");
  add_model(*tree, crafted);
  for (std::size_t rank = 0; rank < crafted.flats.size(); ++rank) add_rank(*tree, crafted, rank);
  return answer_of(tree);
}

void expect_refused(const Crafted& crafted, Code code, const std::string& says) {
  const Answer answer = answer_of(crafted);
  EXPECT_EQ(answer.code, code) << answer.message;
  EXPECT_NE(answer.message.find(says), std::string::npos) << answer.message;
}

TEST(DeepSpeedCrafted, IsReadWhenEverythingAgrees) { EXPECT_EQ(answer_of(Crafted{}).message, ""); }

// By their names alone: which of them tell what is missing.
TEST(DeepSpeedDamage, EverySubsetOfTheFilesIsAnswered) {
  const std::vector<std::string> names = {
      "mp_rank_00_model_states.pt", "zero_pp_rank_0_mp_rank_00_model_states.pt",
      "zero_pp_rank_1_mp_rank_00_model_states.pt", "zero_pp_rank_1_mp_rank_00_optim_states.pt"};
  for (std::size_t subset = 1; subset < std::size_t{1} << names.size(); ++subset) {
    MemoryTree tree("ck");
    const auto has = [&](std::size_t name) { return (subset >> name & 1) != 0; };
    for (std::size_t i = 0; i < names.size(); ++i)
      if (has(i)) tree.add("t/" + names[i], std::string_view("-"));
    const auto found = formats::deepspeed::find_files(tree);
    const bool twice = has(0) && has(1), models = has(0) || has(1) || has(2);
    const bool of_zero3 = !has(3) && (has(1) || has(2));
    EXPECT_EQ(found.has_value(), !twice && models && !of_zero3) << subset;
    if (found || twice) continue;
    EXPECT_EQ(found.error().code, Code::incomplete) << subset;
    EXPECT_EQ(found.error().message.find("ZeRO-3's weights") != std::string::npos, of_zero3)
        << subset << found.error().message;
  }
}

TEST(DeepSpeedDamage, DS04RankFilesOfAnotherStepAreNamed) {
  const fs::path data = fs::path(EBB_FIXTURES) / "deepspeed/z2_adamw_resume_w4/data";
  const auto tree = test_support::load_tree(data);
  const std::string file = "bf16_zero_pp_rank_1_mp_rank_00_optim_states.pt";
  tree->bytes_of("global_step5/" + file) = tree->bytes_of("global_step3/" + file);
  const Answer answer = answer_of(tree);
  EXPECT_EQ(answer.code, Code::layout);
  EXPECT_NE(answer.message.find("global_step5/" + file +
                                ": the optimizer's step is 3, in the file of rank 0 it is 5 (file "
                                "of another save)"),
            std::string::npos)
      << answer.message;
}

TEST(DeepSpeedDamage, DS04ModelFilesOfAnotherStepAreNamed) {
  const fs::path data = fs::path(EBB_FIXTURES) / "deepspeed/z3_muon_fp16_resume_w2/data";
  const auto tree = test_support::load_tree(data);
  std::vector<std::string> models;
  for (const auto& entry : tree->entries())
    if (entry.name.ends_with("zero_pp_rank_1_mp_rank_00_model_states.pt"))
      models.push_back(entry.name);
  ASSERT_EQ(models.size(), 2u) << "two saves";
  std::swap(tree->bytes_of(models[0]), tree->bytes_of(models[1]));
  const Answer answer = answer_of(tree);
  EXPECT_EQ(answer.code, Code::layout);
  EXPECT_NE(answer.message.find("in the file of rank 0 it is"), std::string::npos)
      << answer.message;
}

// Partitions of stage 3 are of one length, and nothing else in them says whose they are.
TEST(DeepSpeedDamage, DS14FilesThatChangedNamesAreNamed) {
  const fs::path data = fs::path(EBB_FIXTURES) / "deepspeed/z3_adamw_bf16_w4/data";
  const auto tree = test_support::load_tree(data);
  std::vector<std::string> files;
  for (const auto& entry : tree->entries())
    if (entry.name.ends_with("_optim_states.pt")) files.push_back(entry.name);
  ASSERT_EQ(files.size(), 4u);
  std::swap(tree->bytes_of(files[1]), tree->bytes_of(files[2]));
  const Answer answer = answer_of(tree);
  EXPECT_EQ(answer.code, Code::layout);
  const std::string other = files[2].substr(files[2].rfind('/') + 1);
  EXPECT_NE(answer.message.find(files[1] + ": written as " + other + ": the file of another rank"),
            std::string::npos)
      << answer.message;
}

TEST(DeepSpeedDamage, DS05PartitionCountMayBeANumberOrAList) {
  Crafted crafted;
  crafted.partition_count = Value::of_int(3);
  EXPECT_EQ(answer_of(crafted).message, "");
  for (const Value& count : {Value::of_int(0), Value::of_int(-1), Value::of_int(1 << 21),
                             Value::of_string("3"), Value::of_list({}), Value::of_real(3)}) {
    crafted.partition_count = count;
    expect_refused(crafted, Code::corrupt, "partition_count is no number of ranks");
  }
  crafted.partition_count = Value::of_list({Value::of_int(3), Value::of_int(2)});
  expect_refused(crafted, Code::unsupported, "cut over different numbers of ranks");
  crafted.partition_count = Value::of_list({Value::of_int(4)});
  expect_refused(crafted, Code::incomplete,
                 "optimizer file of rank 3 is missing (partition_count is 4)");
  crafted.partition_count = Value::of_list({Value::of_int(2)});
  expect_refused(crafted, Code::layout, "partition_count is 2 but 3 rank files exist");
}

TEST(DeepSpeedDamage, DS05WorldSizesThatAreNoneOrAnotherAreRefused) {
  Crafted crafted;
  for (const Value& size : {Value::of_int(0), Value::of_int(-3), Value::of_string("3")}) {
    crafted.dp_world_size = size;
    expect_refused(crafted, Code::corrupt, "dp_world_size is no number of ranks");
  }
  crafted.dp_world_size = Value::of_int(2);
  expect_refused(crafted, Code::layout, "dp_world_size is 2, but partition_count is 3");
}

TEST(DeepSpeedDamage, DS06ParametersMustFillThePartitionsExactly) {
  Crafted crafted;
  crafted.shapes[1] = {6};  // one more than there is
  expect_refused(crafted, Code::layout,
                 "its parameters take 11 elements, but the partitions of all ranks hold 10");
  crafted.shapes[1] = {4};  // one less
  expect_refused(crafted, Code::layout,
                 "its parameters take 9 elements, but the partitions up to this rank hold 10");
  crafted.shapes = {{std::uint64_t{1} << 40}, {5}, {1}};
  expect_refused(crafted, Code::layout, "but the partitions of all ranks hold 10");
  crafted.shapes = {{std::uint64_t{1} << 60}, {std::uint64_t{1} << 60}};
  expect_refused(crafted, Code::corrupt, "is larger than any file");
  crafted.shapes = {{std::uint64_t{1} << 33, std::uint64_t{1} << 33}};
  expect_refused(crafted, Code::corrupt, "is larger than any file");
}

TEST(DeepSpeedDamage, DS06PaddingMustExplainTheLengths) {
  Crafted crafted;
  crafted.paddings[2] = Value::of_int(3);
  expect_refused(crafted, Code::layout,
                 "its partition has 5 elements, in the file of rank 0 it has 4");
  for (const Value& padding :
       {Value::of_int(-1), Value::of_string("2"), Value::of_int(std::int64_t{1} << 60)}) {
    crafted.paddings[2] = padding;
    expect_refused(crafted, Code::corrupt, "group_paddings holds something that is no length");
  }
}

TEST(DeepSpeedDamage, DS09PartitionsOfDifferentLengthsAreRefused) {
  Crafted crafted;
  crafted.flats = {4, 3, 3};
  crafted.paddings = {Value::of_int(0), Value::of_int(0), Value::of_int(1)};
  expect_refused(crafted, Code::layout,
                 "its partition has 3 elements, in the file of rank 0 it has 4");
}

}  // namespace

}  // namespace ebb
