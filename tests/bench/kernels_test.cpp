// `./dev bench ns` and `./dev bench step` with next to nothing to measure: every figure is there.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/support/program.h"

namespace ebb {
namespace {

using test_support::Outcome;
using test_support::run_program;
using test_support::ScratchDirectory;
using test_support::text_of_file;

TEST(NewtonSchulzBenchmark, SetsEveryKindBesideItsPeers) {
  const ScratchDirectory scratch;
  const std::string json = scratch / "figures.json";
  const Outcome run = run_program(
      EBB_FIXTURES "/../bench/ns",
      {EBB_BIN, scratch.path(), "--rounds", "2", "--shapes", "64x160 96x96", "--json", json});
  ASSERT_EQ(run.exit, 0) << run.out << run.err;
  const std::string figures = text_of_file(json);
  for (const char* kind : {"standard-fp32", "gram-fp32", "standard-emulated", "gram-emulated"})
    for (const char* shape : {"64x160", "96x96"})
      EXPECT_NE(figures.find("\"" + std::string(kind) + " " + shape + " 1\": {\"seconds\": "),
                std::string::npos)
          << kind << " " << shape << "\n"
          << figures;
  EXPECT_NE(run.out.find("left out: no Python with PyTorch"), std::string::npos) << run.out;
}

// A stand-in for a Python with PyTorch: it answers a line for each line, one kind never, one with
// what takes a minute; one ends it.
std::string python_in(const ScratchDirectory& scratch) {
  const std::string path = scratch / "python";
  std::ofstream(path) << "#!/bin/bash\n"
                         "while read -r kind rest; do\n"
                         "  case $kind in\n"
                         "    torch-gram-bf16) sleep 600 ;;\n"
                         "    torch-standard-bf16) echo 60.0 60.0 ;;\n"
                         "    torch-gram-fp32) echo 'no such instruction' >&2; exit 1 ;;\n"
                         "    '') exit 0 ;;\n"
                         "    *) echo 0.01 0.01 ;;\n"
                         "  esac\n"
                         "done\n";
  std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  return path;
}

TEST(NewtonSchulzBenchmark, LeavesOutByNameWhatTakesTooLongOrEnds) {
  const ScratchDirectory scratch;
  const Outcome run = run_program(EBB_FIXTURES "/../bench/ns",
                                  {EBB_BIN, scratch.path(), "--rounds", "2", "--shapes",
                                   "8x16 16x32", "--limit", "2", "--python", python_in(scratch)});
  ASSERT_EQ(run.exit, 0) << run.out << run.err;
  for (const char* words :
       {"left out: torch-gram-bf16 on 1 cores: more than 2 seconds\n",
        "left out: torch-gram-fp32 on 1 cores: no such instruction\n",
        "left out: torch-standard-bf16 8x16 on 1 cores: 2 rounds would take 180 s, more than ",
        "left out: torch-standard-bf16 16x32 on 1 cores: 2 rounds would take 1440 s, more than "})
    EXPECT_NE(run.out.find(words), std::string::npos) << words << "\n" << run.out;
  // The others are measured all the same, in each round.
  EXPECT_EQ(run.out.find("left out: torch-muon"), std::string::npos) << run.out;
  EXPECT_NE(run.out.find("  torch-muon "), std::string::npos) << run.out;
  for (const char* words : {"bench ns: 8x16: round 1 of 2\n", "bench ns: 16x32: round 2 of 2\n"})
    EXPECT_NE(run.err.find(words), std::string::npos) << words << "\n" << run.err;
}

TEST(NewtonSchulzBenchmark, APythonThatIsNotThereIsLeftOut) {
  const ScratchDirectory scratch;
  for (const char* name : {"ns", "step"}) {
    const Outcome run =
        run_program(std::string(EBB_FIXTURES "/../bench/") + name,
                    {EBB_BIN, scratch.path(), "--rounds", "1", "--python", scratch / "none",
                     name == std::string("ns") ? "--shapes" : "--matrices",
                     name == std::string("ns") ? "8x16" : "1"});
    EXPECT_EQ(run.exit, 0) << run.out << run.err;
    EXPECT_NE(run.out.find("left out: there is no " + (scratch / "none")), std::string::npos)
        << run.out;
  }
}

TEST(StepBenchmark, SetsMuonBesideAdamWAndElementwiseWorkBesideATriad) {
  const ScratchDirectory scratch;
  const std::string json = scratch / "figures.json";
  const Outcome run = run_program(EBB_FIXTURES "/../bench/step",
                                  {EBB_BIN, scratch.path(), "--rounds", "1", "--matrices", "1",
                                   "--elems", "100000", "--json", json});
  ASSERT_EQ(run.exit, 0) << run.out << run.err;
  const std::string figures = text_of_file(json);
  for (const char* name :
       {"adamw_vs_triad 1", "momentum_vs_triad 1", "apply_vs_triad 1", "norm_vs_plain_sum 1",
        "muon_step_s", "adamw_peak_gb", "muon_read_gb", "muon_of_its_bound", "muon_vs_adamw_time"})
    EXPECT_NE(figures.find("\"" + std::string(name) + "\": {\"value\": "), std::string::npos)
        << name << "\n"
        << figures;
}

TEST(KernelBenchmarks, RefuseWhatTheyDoNotKnow) {
  const ScratchDirectory scratch;
  for (const char* name : {"ns", "step"})
    EXPECT_EQ(run_program(std::string(EBB_FIXTURES "/../bench/") + name,
                          {EBB_BIN, scratch.path(), "--what"})
                  .exit,
              2);
  EXPECT_EQ(run_program("ebb-step", {scratch.path()}).exit, 2);
}

}  // namespace
}  // namespace ebb
