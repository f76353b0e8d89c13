// ckpt-inspect --explain-resume: yes or no, why, and a command that really makes it possible.
#include <gtest/gtest.h>

#include <sstream>

#include "tests/tools/ckpt_inspect/inspect.h"

namespace ebb {

namespace {

using inspect_test::inspect;
using test_support::Outcome;
using test_support::ScratchDirectory;

Outcome explain(const std::string& path, const std::string& world) {
  return inspect({path, "--explain-resume", world});
}

TEST(InspectExplain, DcpResumesOnAnyNumberOfRanks) {
  for (const char* world : {"1", "2", "4", "64"}) {
    const Outcome run = explain("dcp/fsdp1_sharded_tensor_w2/data", world);
    EXPECT_EQ(run.exit, 0) << run.err;
    EXPECT_NE(run.out.find("yes, torch.distributed.checkpoint resumes it"), std::string::npos);
  }
}

// A Trainer's folder names no parameters, and FSDP2 looks states up by name.
TEST(InspectExplain, DcpOfNumberedParametersSaysWhoFindsThem) {
  const ScratchDirectory scratch;
  const std::string out = scratch / "dcp";
  const Outcome convert =
      test_support::run_program("ckpt-convert", {"folders/trainer/data", out, "--to", "dcp"});
  ASSERT_EQ(convert.exit, 0) << convert.err;
  const std::string note = "note      its optimizer's parameters are numbers";
  const Outcome numbered = explain(out, "2"), named = explain("dcp/fsdp2_w1/data", "2");
  EXPECT_NE(numbered.out.find(note), std::string::npos) << numbered.out;
  EXPECT_EQ(named.out.find(note), std::string::npos) << named.out;
}

TEST(InspectExplain, DeepSpeedResumesOnAsManyRanksOnly) {
  EXPECT_EQ(explain("deepspeed/z3_muon_bf16_w4/data", "4").exit, 0);
  EXPECT_EQ(explain("deepspeed/z2_adamw_fp16_w2/data", "2").exit, 0);
  const Outcome run = explain("deepspeed/z3_muon_bf16_w4/data", "2");
  EXPECT_EQ(run.exit, 1);
  EXPECT_NE(run.out.find("saved by 4 ranks, and DeepSpeed loads ZeRO state on as many ranks only"),
            std::string::npos)
      << run.out;
}

TEST(InspectExplain, KnowsWhatDeepSpeedLosesWithoutAWord) {
  const Outcome swapped = explain("deepspeed/z3_muon_nvme_w2/data", "2");
  EXPECT_EQ(swapped.exit, 1);
  EXPECT_NE(swapped.out.find("lies on NVMe"), std::string::npos) << swapped.out;
  const Outcome memory = explain("deepspeed/z3_muon_inmem_bf16_w2/data", "2");
  EXPECT_EQ(memory.exit, 0);
  EXPECT_NE(memory.out.find("note      save_muon_momentum_buffer_in_memory"), std::string::npos)
      << memory.out;
}

TEST(InspectExplain, MissingRanksAreTheReason) {
  const Outcome run = explain("deepspeed/bad_missing_rank/data", "3");
  EXPECT_EQ(run.exit, 1);
  EXPECT_EQ(run.err, "");
  EXPECT_NE(run.out.find("rank 1"), std::string::npos) << run.out;
  EXPECT_NE(run.out.find("missing"), std::string::npos) << run.out;
}

TEST(InspectExplain, WeightsAloneAreNoResume) {
  for (const char* path : {"safetensors/odd_header_spaces/data", "dcp/no_collectives_w2/data"}) {
    const Outcome run = explain(path, "2");
    EXPECT_EQ(run.exit, 1);
    EXPECT_NE(run.out.find("weights only"), std::string::npos) << run.out;
    EXPECT_EQ(run.out.find("ckpt-convert"), std::string::npos) << run.out;
  }
}

TEST(InspectExplain, EbbsStoreResumesOnAnyNumberOfRanks) {
  const ScratchDirectory scratch;
  const std::string store = scratch / "store";
  ASSERT_EQ(test_support::run_program("ckpt-convert",
                                      {"deepspeed/z3_muon_bf16_w4/data", store, "-t", "ebb"})
                .exit,
            0);
  EXPECT_EQ(explain(store, "7").exit, 0);
  // Of one that has masters alone the moments are missing.
  const Outcome masters = explain("ebb/v1_w2/data", "7");
  EXPECT_EQ(masters.exit, 1);
  EXPECT_NE(masters.out.find("w has neither momentum_buffer nor"), std::string::npos)
      << masters.out;
}

// The command that is printed, run as it is printed, gives what the answer to is yes.
struct Wanted {
  const char* checkpoint;
  const char* world;
};
class InspectExplainCommand : public testing::TestWithParam<Wanted> {};

void expect_possible(const std::string& checkpoint, const std::string& world) {
  const ScratchDirectory scratch;
  const Outcome asked = explain(checkpoint, world);
  EXPECT_EQ(asked.exit, 1) << asked.err;
  const std::size_t at = asked.out.find("ckpt-convert ");
  ASSERT_NE(at, std::string::npos) << asked.out;
  std::istringstream words(asked.out.substr(at, asked.out.find('\n', at) - at));
  std::vector<std::vector<std::string>> commands(1);
  for (std::string word; words >> word;)
    if (word == "&&")
      commands.emplace_back();
    else
      commands.back().push_back(word);
  std::string made;  // not beside the fixture
  for (std::vector<std::string>& command : commands) {
    ASSERT_GT(command.size(), 3u);
    if (!made.empty()) command[1] = made;
    command[2] = made = scratch / ("out" + std::to_string(made.size()));
    const Outcome convert =
        test_support::run_program(command[0], {command.begin() + 1, command.end()});
    ASSERT_EQ(convert.exit, 0) << convert.err;
  }
  const Outcome then = explain(made, world);
  EXPECT_EQ(then.exit, 0) << then.out;
}

TEST_P(InspectExplainCommand, MakesItPossible) {
  expect_possible(GetParam().checkpoint, GetParam().world);
}

TEST(InspectExplain, ACommandNeedsStatesWithTheirGroups) {
  const ScratchDirectory scratch;
  const std::string whole = scratch / "whole";
  ASSERT_EQ(test_support::run_program(
                "ckpt-convert", {"deepspeed/z2_adamw_fp16_w2/data", whole, "--to", "safetensors"})
                .exit,
            0);
  expect_possible(whole, "2");
  const Outcome alone = explain("safetensors/dcp_hf_sharded_w3/data", "2");
  EXPECT_EQ(alone.exit, 1) << alone.err;
  EXPECT_EQ(alone.out.find("ckpt-convert "), std::string::npos) << alone.out;
}

INSTANTIATE_TEST_SUITE_P(Formats, InspectExplainCommand,
                         testing::Values(Wanted{"deepspeed/z3_muon_bf16_w4/data", "2"},
                                         Wanted{"deepspeed/z3_adamw_bf16_w4/data", "3"},
                                         Wanted{"deepspeed/z2_adamw_fp16_w2/data", "3"},
                                         Wanted{"megatron/legacy012_flattened_tp2_dp2/data", "2"}),
                         [](const auto& one) {
                           std::string name = one.param.checkpoint;
                           for (char& c : name)
                             if (c == '/') c = '_';
                           return name + "_on_" + one.param.world;
                         });

TEST(InspectExplain, IsOneJsonDocumentForPrograms) {
  const Outcome run =
      inspect({"dcp/fsdp1_sharded_tensor_w2/data", "--explain-resume", "2", "--json"});
  EXPECT_EQ(run.exit, 0);
  EXPECT_EQ(run.out,
            "{\"schema\": \"ckpt.inspect/1\", \"mode\": \"explain-resume\", \"path\": "
            "\"dcp/fsdp1_sharded_tensor_w2/data\", \"world\": 2, \"resumable\": true, \"loader\": "
            "\"torch.distributed.checkpoint\", \"why\": \"each of 2 ranks reads its part of every "
            "tensor from whichever file holds it\", \"command\": null, \"notes\": []}\n");
}

TEST(InspectExplain, ANumberOfRanksIsAtLeastOne) {
  const Outcome run = explain("dcp/no_collectives_w2/data", "0");
  EXPECT_EQ(run.exit, 2);
  EXPECT_EQ(run.out, "");
}

}  // namespace

}  // namespace ebb
