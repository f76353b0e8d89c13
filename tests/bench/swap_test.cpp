// `./dev bench swap` with next to nothing to measure: every figure is there, and the state is
// right.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "tests/support/program.h"

namespace ebb {
namespace {

using test_support::Outcome;
using test_support::run_program;
using test_support::ScratchDirectory;
using test_support::text_of_file;

std::ptrdiff_t files_in(const std::string& folder) {
  return std::distance(std::filesystem::directory_iterator(folder), {});
}

TEST(SwapBenchmark, WritesEveryFigureItWasAskedFor) {
  const ScratchDirectory scratch;
  const Outcome run = run_program(EBB_FIXTURES "/../bench/swap",
                                  {EBB_BIN, scratch.path(), "--rounds", "1", "--bytes", "16777216",
                                   "--json", scratch / "figures.json"});
  ASSERT_EQ(run.exit, 0) << run.out << run.err;
  const std::string figures = text_of_file(scratch / "figures.json");
  for (const char* name :
       {"step_vs_limit", "bare_vs_limit", "checksum_cost", "threads_vs_step", "predicted_vs_step",
        "io_thread_cores_per_gb_per_s", "own_user_us_per_tile"})
    EXPECT_NE(figures.find("\"" + std::string(name) + "\": "), std::string::npos) << name;
  // No Python was named.
  for (const char* name : {"step_vs_deepspeed_default", "step_vs_deepspeed_tuned",
                           "resident25_vs_deepspeed_default", "resident25_vs_deepspeed_tuned"})
    EXPECT_NE(figures.find("\"" + std::string(name) + "\": null"), std::string::npos) << name;
  EXPECT_NE(run.out.find("left out: DeepSpeed: no Python with DeepSpeed"), std::string::npos)
      << run.out;
  EXPECT_NE(run.err.find("bench swap: round 1 of 1\n"), std::string::npos) << run.err;
  EXPECT_EQ(files_in(scratch.path()), 1) << "more than figures.json is left in the folder";
}

// A round of next to nothing; what is said of DeepSpeed, and figures without "inf".
std::string left_out(const ScratchDirectory& scratch, const std::string& python) {
  const std::string json = scratch / "figures.json";
  const Outcome run = run_program(EBB_FIXTURES "/../bench/swap",
                                  {EBB_BIN, scratch.path(), "--rounds", "1", "--bytes", "16777216",
                                   "--json", json, "--python", python});
  EXPECT_EQ(run.exit, 0) << run.out << run.err;
  const std::string figures = text_of_file(json);
  for (const std::string& text : {run.out, figures}) {
    EXPECT_NE(text.find("step_vs_limit"), std::string::npos) << text;
    EXPECT_EQ(text.find("inf"), std::string::npos) << text;
    EXPECT_EQ(text.find("nan"), std::string::npos) << text;
  }
  const std::size_t from = run.out.find("left out: ");
  return from == std::string::npos ? "" : run.out.substr(from, run.out.find('\n', from) - from);
}

TEST(SwapBenchmark, WhatDeepSpeedCannotAnswerIsNamedAndTheRestIsMeasured) {
  const ScratchDirectory scratch;
  EXPECT_EQ(left_out(scratch, scratch / "none"),
            "left out: DeepSpeed: there is no " + (scratch / "none"));
  std::ofstream(scratch / "python") << "#!/bin/bash\necho no module called deepspeed >&2\n";
  std::filesystem::permissions(scratch / "python", std::filesystem::perms::owner_all);
  EXPECT_EQ(left_out(scratch, scratch / "python"),
            "left out: DeepSpeed: no module called deepspeed");
  // A build that was killed has left its lock: DeepSpeed would wait for it for ever.
  const std::string build = scratch / "extensions/py311_cpu/async_io";
  std::filesystem::create_directories(build);
  std::ofstream(build + "/lock") << "";
  ASSERT_EQ(::setenv("TORCH_EXTENSIONS_DIR", (scratch / "extensions").c_str(), 1), 0);
  EXPECT_EQ(left_out(scratch, scratch / "python"),
            "left out: DeepSpeed: DeepSpeed's operator async_io has been locked by a build for 0 "
            "minutes; where none is running: rm " +
                build + "/lock");
  ::unsetenv("TORCH_EXTENSIONS_DIR");
}

TEST(SwapBenchmark, MakesNoPythonUnasked) {
  const ScratchDirectory cache;
  ASSERT_EQ(::setenv("XDG_CACHE_HOME", cache.path().c_str(), 1), 0);
  const Outcome run =
      run_program(EBB_FIXTURES "/../bench/run", {std::filesystem::path(EBB_BIN).parent_path(),
                                                 "swap", "--rounds", "1", "--bytes", "16777216"});
  ::unsetenv("XDG_CACHE_HOME");
  EXPECT_EQ(run.exit, 0) << run.out << run.err;
  EXPECT_NE(run.out.find("left out: DeepSpeed: no Python with DeepSpeed"), std::string::npos)
      << run.out;
  EXPECT_EQ(files_in(cache.path()), 0);
}

TEST(MemoryBenchmark, SetsEachOperationBesideItsLoop) {
  const ScratchDirectory scratch;
  const std::string json = scratch / "figures.json";
  const Outcome run = run_program(
      EBB_FIXTURES "/../bench/memory",
      {EBB_BIN, "--work", scratch.path(), "--rounds", "1", "--bytes", "16777216", "--json", json});
  ASSERT_EQ(run.exit, 0) << run.out << run.err;
  const std::string figures = text_of_file(json);
  for (const char* name : {"loop-copy", "save", "load", "reshard", "convert"})
    EXPECT_NE(figures.find("\"" + std::string(name) + "\": {\"seconds\": "), std::string::npos)
        << figures;
  EXPECT_EQ(files_in(scratch.path()), 1) << "more than figures.json is left in the folder";
}

TEST(SwapBenchmark, RefusesWhatItDoesNotKnow) {
  const ScratchDirectory scratch;
  EXPECT_EQ(run_program("ebb-swap-rounds", {scratch.path()}).exit, 2);
  EXPECT_EQ(run_program(EBB_FIXTURES "/../bench/swap", {EBB_BIN, scratch.path(), "--what"}).exit,
            2);
}

}  // namespace
}  // namespace ebb
