// `./dev bench python`: goals are judged as they are said, the worse of two orders counts, and what
// cannot be measured is left out by name. Nothing is timed here.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/support/program.h"

namespace ebb {
namespace {

using test_support::Outcome;
using test_support::run_program;
using test_support::says;
using test_support::ScratchDirectory;
using test_support::text_of_file;

const std::string kRun = EBB_FIXTURES "/../bench/python/run";

// Lines as the programs answer them, every goal just reached in the order that is worse.
constexpr const char* kReached =
    "binding there plain-step 0.0031 0.9 1000\n"  // the best of an order counts
    "binding there plain-step 0.003 1 1000\n"
    "binding back plain-step 0.002 1 1000\n"
    "binding there dtensor-step 0.002 1 1000\n"
    "binding back dtensor-step 0.008 1 1000\n"
    "binding there wide-plain-step 0.001 0.1 24\n"
    "binding back wide-plain-step 0.0005 0.1 24\n"
    "binding there wide-dtensor-step 0.0005 0.1 24\n"
    "binding back wide-dtensor-step 0.001 0.1 24\n"
    "muon check ours-check-2x512x2048 9e-06\n"
    "muon there ours-fp32-8x512x2048 0.95\n"
    "muon back ours-fp32-8x512x2048 0.5\n"
    "muon there torch-fp32-8x512x2048 1\n"
    "muon back torch-fp32-8x512x2048 1\n"
    "gpt there python-step 1\n"
    "gpt back python-step 0.9\n"
    "gpt there cpp-step 0.98\n"
    "gpt back cpp-step 0.98\n"
    "gpt there python-snapshot 1\n"
    "gpt back python-snapshot 1.1\n"
    "gpt there cpp-snapshot 1\n"
    "gpt back cpp-snapshot 1\n"
    "gpt check python-sum -7\n"
    "gpt check cpp-sum -7\n"
    "adamw there disk-limit-1m-8 2 0 0 0 100 100\n"  // 100 bytes a second
    "adamw there disk-limit-4m-8 4 0 0 0 100 100\n"
    "adamw back disk-limit-1m-8 4 0 0 0 100 100\n"
    "adamw back disk-limit-4m-8 2 0 0 0 100 100\n"
    "adamw there ours-paged 1 50 40\n"
    "adamw back ours-paged 1 50 50\n"
    "adamw there ours-resident 0.3\n"
    "adamw back ours-resident 0.3\n"
    "adamw there torch-fused 0.2\n"
    "adamw back torch-fused 0.2\n"
    "adamw there deepspeed-default 1.6\n"
    "adamw back deepspeed-default 2\n"
    "adamw there deepspeed-tuned 0.5\n"
    "adamw back deepspeed-tuned 0.5\n"
    "save there ours-save 2.5 50\n"
    "save back ours-save 1 100\n"
    "save there torch-save 1 1000\n"
    "save back torch-save 1 1000\n"
    "load check both-same 1\n"
    "load there both-ours 1\n"
    "load back both-ours 0.5\n"
    "load there both-theirs 0.9\n"
    "load back both-theirs 0.9\n"
    "load there both-disk 0.95\n"
    "load back both-disk 0.45\n"
    "memory once run-run 77108864 6000000 4000000 288000000 4000000\n"
    "memory once resident-resident 105\n"
    "memory once torch-torch 100\n";

Outcome judged(const std::string& lines, const std::string& json, const std::string& bf16 = "none",
               const std::string& small = "0") {
  std::ofstream(json + ".lines") << lines;
  return run_program("/usr/bin/env", {"awk", "-v", "small=" + small, "-v", "bf16=" + bf16, "-v",
                                      "rounds=2", "-v", "json=" + json, "-f",
                                      EBB_FIXTURES "/../bench/python/ratios.awk", json + ".lines"});
}

std::size_t count_of(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1))
    ++count;
  return count;
}

std::string with(const std::string& from, const std::string& to) {
  std::string lines = kReached;
  const std::size_t at = lines.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return lines.replace(at, from.size(), to);
}

TEST(PythonBenchmark, GoalsThatAreJustReachedAreMet) {
  const ScratchDirectory scratch;
  const Outcome run = judged(kReached, scratch / "json");
  EXPECT_EQ(run.exit, 0) << run.out << run.err;
  EXPECT_EQ(count_of(run.out, "FAILED"), 0u) << run.out;
  EXPECT_EQ(count_of(run.out, "not measured"), 0u) << run.out;
  const std::string json = text_of_file(scratch / "json");
  EXPECT_EQ(count_of(json, "\"met\": true"), 19u) << json;
  EXPECT_EQ(count_of(json, "\"met\": false"), 0u) << json;
  // Of an order the best, of both the worse.
  EXPECT_TRUE(says(json, "\"binding, plain: us a parameter\": {\"found\": 3,")) << json;
  EXPECT_TRUE(says(json, "\"AdamW paged: of its bound\": {\"found\": 0.9,")) << json;
  EXPECT_TRUE(says(json, "speed, tuned aio\": {\"found\": 0.5, \"goal\": null")) << json;
}

TEST(PythonBenchmark, EachGoalThatIsMissedIsNamed) {
  struct Missed {
    const char *from, *to, *name;
  };
  const ScratchDirectory scratch;
  for (const auto& [from, to, name] : {
           Missed{"there plain-step 0.003 ", "there plain-step 0.00301 ", "binding, plain: us"},
           Missed{"back dtensor-step 0.008", "back dtensor-step 0.0081", "binding, DTensor: us"},
           Missed{"there wide-plain-step 0.001", "there wide-plain-step 0.0011",
                  "binding, plain, 512 x 512"},
           Missed{"back wide-dtensor-step 0.001", "back wide-dtensor-step 0.0011",
                  "binding, DTensor, 512 x 512"},
           Missed{"2x512x2048 9e-06", "2x512x2048 1.1e-05", "Muon: weights beside"},
           Missed{"ours-fp32-8x512x2048 0.95", "ours-fp32-8x512x2048 0.96", "Muon resident, fp32"},
           Missed{"there cpp-step 0.98", "there cpp-step 0.97", "paged through Python: rate"},
           Missed{"python-snapshot 1.1", "python-snapshot 1.2", "checkpoint=reference"},
           Missed{"cpp-sum -7", "cpp-sum -8", "paged through Python: weights' bits"},
           Missed{"there ours-paged 1 50 40", "there ours-paged 1 50 39", "AdamW paged: of its"},
           Missed{"deepspeed-default 1.6", "deepspeed-default 1.5", "speed, default aio"},
           Missed{"ours-save 2.5", "ours-save 2.6", "dcp.save: of torch's time"},
           Missed{"ours-save 1 100", "ours-save 1 101", "dcp.save: of torch's memory"},
           Missed{"there both-theirs 0.9", "there both-theirs 0.89", "rate of safetensors'"},
           Missed{"back both-disk 0.45", "back both-disk 0.44", "of fio's rate"},
           Missed{"both-same 1", "both-same 0", "the bits that safetensors"},
           Missed{"back ours-resident 0.3", "back ours-resident 0.31", "AdamW resident: of torch"},
           Missed{"run-run 77108864", "run-run 77108900", "memory of a run: of budget"},
           Missed{"resident-resident 105", "resident-resident 106", "state resident"},
       }) {
    const Outcome run = judged(with(from, to), scratch / "json");
    EXPECT_EQ(run.exit, 1) << name << "\n" << run.out;
    EXPECT_EQ(count_of(run.out, "FAILED"), 1u) << run.out;
    EXPECT_TRUE(says(run.out.substr(std::min(run.out.find("FAILED"), run.out.size())), name))
        << name << "\n"
        << run.out;
    // Of a small run nothing is judged.
    EXPECT_EQ(judged(with(from, to), scratch / "json", "none", "1").exit, 0) << name;
  }
}

// Where the processor multiplies bf16, torch as it is shipped is who is to be beaten; with AMX both
// are printed only.
TEST(PythonBenchmark, MuonIsJudgedInWhatTheProcessorMultiplies) {
  const ScratchDirectory scratch;
  const std::string slow =
      with("muon there ours-fp32-8x512x2048 0.95", "muon there ours-fp32-8x512x2048 2");
  EXPECT_EQ(judged(slow, scratch / "json", "none").exit, 1);
  EXPECT_EQ(judged(slow, scratch / "json", "real").exit, 0);
  std::string in_bf16;
  for (const std::string order : {"there", "back"})
    in_bf16 +=
        "muon " + order + " ours-bf16-8x512x2048 2\nmuon " + order + " torch-bf16-8x512x2048 1\n";
  EXPECT_EQ(judged(kReached + in_bf16, scratch / "json", "real").exit, 1);
  EXPECT_EQ(judged(kReached + in_bf16, scratch / "json", "amx").exit, 0);
}

TEST(PythonBenchmark, WhatAPeerDidNotAnswerIsNotMeasured) {
  const ScratchDirectory scratch;
  std::string lines = kReached;
  for (std::size_t at; (at = lines.find("adamw there deepspeed")) != std::string::npos ||
                       (at = lines.find("adamw back deepspeed")) != std::string::npos;)
    lines.erase(at, lines.find('\n', at) + 1 - at);
  const Outcome run = judged(lines, scratch / "json");
  EXPECT_EQ(run.exit, 0) << run.out << run.err;
  EXPECT_TRUE(says(run.out, "not measured AdamW paged: times DeepSpeed's speed, default aio"))
      << run.out;
  EXPECT_TRUE(says(text_of_file(scratch / "json"), "default aio\": {\"found\": null"));
}

// A stand-in for a Python with PyTorch: it answers a line for each line, but torch never in bf16;
// of DeepSpeed it says that there is none.
std::string stand_in_python(const ScratchDirectory& scratch) {
  const std::string path = scratch / "python";
  std::ofstream(path) << "#!/bin/bash\n"
                         "while read -r word; do\n"
                         "  case ${1##*/}:$2:$word in\n"
                         "    deepspeed*) echo 'no module called deepspeed' >&2; exit 1 ;;\n"
                         "    muon.py:torch:bf16*) echo error no such product ;;\n"
                         "    *:) exit 0 ;;\n"
                         "    *) echo 0.01 0.02 30 40 50 ;;\n"
                         "  esac\n"
                         "done\n";
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  return path;
}

TEST(PythonBenchmark, AsksEveryProgramAndLeavesNothingBehind) {
  const ScratchDirectory scratch, work, extensions;
  ASSERT_EQ(::setenv("TORCH_EXTENSIONS_DIR", extensions.path().c_str(), 1), 0);
  const Outcome run =
      run_program(kRun, {EBB_BIN, work.path(), "--small", "--rounds", "1", "--json",
                         scratch / "figures.json", "--python", stand_in_python(scratch)});
  ::unsetenv("TORCH_EXTENSIONS_DIR");
  ASSERT_EQ(run.exit, 0) << run.out << run.err;
  EXPECT_TRUE(says(run.out, "left out: DeepSpeed: no module called deepspeed\n")) << run.out;
  const std::string figures = text_of_file(scratch / "figures.json");
  for (const char* name :
       {"binding, plain: us a parameter", "binding, DTensor, 512 x 512: of the step",
        "Muon resident, fp32 2x32x64: of torch.optim.Muon",
        "paged through Python: rate of the C++ engine's", "AdamW paged: of its bound",
        "state_dict() and dcp.save: of torch's memory", "memory saved, of the state"})
    EXPECT_FALSE(says(figures, "\"" + std::string(name) + "\": {\"found\": null")) << figures;
  for (const char* name : {"AdamW paged: times DeepSpeed's speed, default aio"})
    EXPECT_TRUE(says(figures, "\"" + std::string(name) + "\": {\"found\": null")) << figures;
  EXPECT_TRUE(std::filesystem::is_empty(work.path()));
}

TEST(PythonBenchmark, WithoutPythonNothingIsMeasured) {
  const ScratchDirectory scratch;
  Outcome run = run_program(kRun, {EBB_BIN, scratch.path()});
  EXPECT_EQ(run.exit, 0) << run.out << run.err;
  EXPECT_TRUE(says(run.out, "left out: no Python with PyTorch; --python names one\n")) << run.out;
  run = run_program(kRun, {EBB_BIN, scratch.path(), "--python", scratch / "none"});
  EXPECT_EQ(run.exit, 0) << run.out << run.err;
  EXPECT_TRUE(says(run.out, "left out: there is no " + (scratch / "none"))) << run.out;
}

TEST(PythonBenchmark, RefusesWhatItDoesNotKnow) {
  const ScratchDirectory scratch;
  EXPECT_EQ(run_program(kRun, {EBB_BIN, scratch.path(), "--what"}).exit, 2);
  EXPECT_EQ(run_program(kRun, {EBB_BIN, scratch.path(), "--only", "binding what"}).exit, 2);
  EXPECT_EQ(run_program("ebb-gpt-step", {scratch.path()}).exit, 2);
}

// What gpt.py makes its parameters of.
TEST(PythonBenchmark, ShapesAreThoseOfTheExampleMatricesFirst) {
  const Outcome run = run_program("ebb-gpt-step", {"shapes", "64", "1"});
  ASSERT_EQ(run.exit, 0) << run.err;
  EXPECT_EQ(run.out,
            "blocks.0.attention.query.weight muon 64 64\n"
            "blocks.0.attention.key.weight muon 64 64\n"
            "blocks.0.attention.value.weight muon 64 64\n"
            "blocks.0.attention.output.weight muon 64 64\n"
            "blocks.0.mlp.up.weight muon 256 64\n"
            "blocks.0.mlp.down.weight muon 64 256\n"
            "embedding.weight adamw 256 64\n"
            "blocks.0.attention.gain adamw 64\n"
            "blocks.0.mlp.gain adamw 64\n"
            "final.gain adamw 64\n"
            "head.weight adamw 256 64\n");
}

}  // namespace
}  // namespace ebb
