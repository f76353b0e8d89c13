// What is said to somebody whose checkpoint is not there, not one, or damaged: what to type next.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/support/program.h"
#include "tests/tools/ckpt_inspect/inspect.h"

namespace ebb {
namespace {

namespace fs = std::filesystem;
using inspect_test::bytes_of;
using inspect_test::inspect;
using inspect_test::write_safetensors;
using test_support::Outcome;
using test_support::ScratchDirectory;

// A folder `name` with one sound safetensors file in it.
void make_sound(const ScratchDirectory& scratch, const std::string& name) {
  fs::create_directories(scratch / name);
  write_safetensors(scratch / (name + "/model.safetensors"), "F32", "[2]", bytes_of<float>({1, 2}));
}

void make_cut_off(const ScratchDirectory& scratch, const std::string& name) {
  make_sound(scratch, name);
  fs::resize_file(scratch / (name + "/model.safetensors"), 20);
}

TEST(InspectAdvice, AFolderOfCheckpointsIsListedAndTheNewestNamed) {
  const ScratchDirectory scratch;
  for (const char* name : {"step-9", "step-10", "step-100"}) make_sound(scratch, name);
  const Outcome run = inspect({scratch.path()});
  EXPECT_EQ(run.exit, 2);
  EXPECT_EQ(run.err, "ckpt-inspect: error: " + scratch.path() +
                         ": no checkpoint itself; 3 lie below it: step-9, step-10, step-100\n"
                         "hint: the newest that is whole: " +
                         scratch / "step-100\n");
}

TEST(InspectAdvice, ADamagedNewestIsNotTheOneThatIsNamed) {
  const ScratchDirectory scratch;
  make_sound(scratch, "step-10");
  make_cut_off(scratch, "step-20");
  const Outcome run = inspect({scratch.path()});
  EXPECT_NE(
      run.err.find("step-10, step-20\nhint: the newest that is whole: " + scratch / "step-10\n"),
      std::string::npos)
      << run.err;
}

// A step counts more than a place in the alphabet; another format is another run.
TEST(InspectAdvice, TheNewestIsOneOfTheSameFormatWithTheLatestStep) {
  const ScratchDirectory scratch;
  const auto copy = [&](const char* fixture, const std::string& name) {
    fs::copy(fs::path(EBB_FIXTURES) / fixture / "data", scratch / name,
             fs::copy_options::recursive);
  };
  copy("deepspeed/z3_muon_bf16_w4", "a");
  copy("deepspeed/z3_muon_bf16_w4", "m");
  copy("torch/muon_adamw_state", "z");
  fs::resize_file(scratch / "m/global_step3/zero_pp_rank_1_mp_rank_00_model_states.pt", 100);
  const Outcome run = inspect({scratch / "m"});
  EXPECT_NE(run.err.find("the newest whole checkpoint beside it: " + scratch / "a" + " (step 3)"),
            std::string::npos)
      << run.err;
  fs::remove_all(scratch / "a");
  EXPECT_EQ(inspect({scratch / "m"}).err.find("beside it"), std::string::npos);
}

TEST(InspectAdvice, OneFileOfACheckpointIsNoneOfItsOwn) {
  for (const char* file : {".metadata", "__0_0.distcp"}) {
    const Outcome run = inspect({std::string("dcp/hsdp_2x2/data/") + file});
    EXPECT_EQ(run.exit, 2);
    EXPECT_EQ(run.err, std::string("ckpt-inspect: error: dcp/hsdp_2x2/data/") + file +
                           ": one file of a dcp checkpoint, which is the folder\n"
                           "hint: name the folder: dcp/hsdp_2x2/data\n");
  }
}

TEST(InspectAdvice, ANameThatIsNotThereGetsTheNearest) {
  const Outcome run = inspect({"dcp/hsdp_2x2/data", "--tensors", "-k", "emb.weigth"});
  EXPECT_EQ(run.exit, 2);
  EXPECT_EQ(run.err,
            "ckpt-inspect: error: none of the 41 tensors matches 'emb.weigth'\n"
            "hint: did you mean emb.weight?\n");
}

TEST(InspectAdvice, PrintedCommandsMakeWhatIsNotThereYet) {
  const ScratchDirectory scratch;
  const std::string source = scratch / "x";
  fs::copy(fs::path(EBB_FIXTURES) / "megatron/flattened015_tied_dp3/data", source,
           fs::copy_options::recursive);
  EXPECT_NE(inspect({source, "--explain-resume", "5"}).out.find(source + "-dcp --to dcp && "),
            std::string::npos);
  fs::create_directory(source + "-dcp");
  EXPECT_NE(inspect({source, "--explain-resume", "5"}).out.find(source + "-dcp-2 --to dcp && "),
            std::string::npos);
  const Outcome here = test_support::run_program(
      "/bin/sh", {"-c", "cd '" + source + "' && exec \"$0\" . --explain-resume 5",
                  std::string(EBB_BIN) + "/ckpt-inspect"});
  EXPECT_NE(here.out.find(source + "-5ranks --to "), std::string::npos) << here.out << here.err;
}

TEST(InspectAdvice, ADamagedCheckpointNamesTheWholeOneBesideIt) {
  const ScratchDirectory scratch;
  make_sound(scratch, "step-10");
  make_cut_off(scratch, "step-20");
  for (const std::vector<std::string>& mode :
       {std::vector<std::string>{}, {"--verify"}, {"--explain-resume", "2"}}) {
    std::vector<std::string> words = {scratch / "step-20"};
    words.insert(words.end(), mode.begin(), mode.end());
    const Outcome run = inspect(words);
    EXPECT_NE((run.out + run.err).find("newest whole checkpoint beside it: " + scratch / "step-10"),
              std::string::npos)
        << run.out << run.err;
  }
}

TEST(InspectAdvice, APathThatIsNotThereGetsTheNearestName) {
  const ScratchDirectory scratch;
  make_sound(scratch, "step-1000");
  const Outcome run = inspect({scratch / "stp-1000"});
  EXPECT_EQ(run.exit, 2);
  EXPECT_NE(run.err.find("hint: did you mean " + scratch / "step-1000?\n"), std::string::npos)
      << run.err;
}

TEST(InspectJson, EveryErrorIsOneDocumentOnStandardOutput) {
  const ScratchDirectory scratch;
  make_cut_off(scratch, "cut");
  const Outcome damaged = inspect({scratch / "cut", "--json"});
  EXPECT_EQ(damaged.exit, 3);
  EXPECT_TRUE(damaged.out.starts_with(
      "{\"schema\": \"ebb.error/1\", \"exit\": 3, \"error\": {\"code\": \"incomplete\", "))
      << damaged.out;
  EXPECT_NE(damaged.out.find("\"file\": \""), std::string::npos) << damaged.out;
  EXPECT_NE(damaged.out.find("\"offset\": 0"), std::string::npos) << damaged.out;
  const Outcome usage = inspect({scratch / "cut", "--json", "--nonsense"});
  EXPECT_EQ(usage.exit, 2);
  EXPECT_NE(usage.out.find("\"code\": \"usage\""), std::string::npos) << usage.out;
  const Outcome verified = inspect({scratch / "cut", "--json", "--verify"});
  EXPECT_TRUE(verified.out.starts_with("{\"schema\": \"ckpt.inspect/1\"")) << verified.out;
  EXPECT_EQ(verified.out.find("ebb.error/1"), std::string::npos) << verified.out;
}

TEST(InspectJson, AHoleIsNamedByTensor) {
  const Outcome run = inspect({"dcp/bad_hole/data", "--json", "--verify"});
  EXPECT_EQ(run.exit, 3);
  EXPECT_NE(run.out.find("\"tensor\": \"model.big\""), std::string::npos) << run.out;
}

std::string map_of(const ScratchDirectory& scratch, const std::string& checkpoint) {
  const Outcome run = inspect({checkpoint, "--map", scratch / "map.html"});
  EXPECT_EQ(run.exit, 0) << run.err;
  return test_support::text_of_file(scratch / "map.html");
}

TEST(InspectMap, ReplacesAnEarlierMapAndNothingElse) {
  const ScratchDirectory scratch;
  map_of(scratch, "dcp/hsdp_2x2/data");
  map_of(scratch, "dcp/hsdp_2x2/data");           // its own
  std::ofstream(scratch / "empty.html").flush();  // as mktemp makes one
  EXPECT_EQ(inspect({"dcp/hsdp_2x2/data", "--map", scratch / "empty.html"}).exit, 0);
  std::ofstream(scratch / "thesis.html") << "<!DOCTYPE html>\nmine";
  fs::create_symlink("map.html", scratch / "link.html");
  for (const char* name : {"thesis.html", "link.html"}) {
    const Outcome run = inspect({"dcp/hsdp_2x2/data", "--map", scratch / name});
    EXPECT_EQ(run.exit, 2) << run.err;
    EXPECT_NE(run.err.find("no shard map"), std::string::npos) << run.err;
  }
  EXPECT_EQ(fs::file_size(scratch / "thesis.html"), 20u);
}

// What lies beside it is written under a name of this run's own.
TEST(InspectMap, LeavesWhatLiesBesideIt) {
  const ScratchDirectory scratch;
  std::ofstream(scratch / "map.html.part") << "mine";
  map_of(scratch, "dcp/hsdp_2x2/data");
  EXPECT_EQ(fs::file_size(scratch / "map.html.part"), 4u);
  EXPECT_EQ(std::distance(fs::directory_iterator(scratch.path()), {}), 2);
}

TEST(InspectMap, WritesHtmlOnly) {
  const ScratchDirectory scratch;
  for (const std::string& name : {std::string("-"), scratch / "map.svg"}) {
    const Outcome run = inspect({"dcp/hsdp_2x2/data", "--map", name});
    EXPECT_EQ(run.exit, 2) << run.err;
    EXPECT_NE(run.err.find(".html"), std::string::npos) << run.err;
    EXPECT_FALSE(fs::exists(name));
  }
}

}  // namespace
}  // namespace ebb
