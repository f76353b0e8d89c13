// `./dev bench ns` and `./dev bench step` with next to nothing to measure: every figure is there.
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "tests/support/program.h"

namespace ebb {
namespace {

using test_support::Outcome;
using test_support::run_program;
using test_support::ScratchDirectory;

std::string text_of(const std::string& path) {
  std::stringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(NewtonSchulzBenchmark, SetsEveryKindBesideItsPeers) {
  const ScratchDirectory scratch;
  const std::string json = scratch / "figures.json";
  const Outcome run = run_program(
      EBB_FIXTURES "/../bench/ns",
      {EBB_BIN, scratch.path(), "--rounds", "2", "--shapes", "64x160 96x96", "--json", json});
  ASSERT_EQ(run.exit, 0) << run.out << run.err;
  const std::string figures = text_of(json);
  for (const char* kind : {"standard-fp32", "gram-fp32", "standard-emulated", "gram-emulated"})
    for (const char* shape : {"64x160", "96x96"})
      EXPECT_NE(figures.find("\"" + std::string(kind) + " " + shape + " 1\": {\"seconds\": "),
                std::string::npos)
          << kind << " " << shape << "\n"
          << figures;
  EXPECT_NE(run.out.find("left out: no Python with PyTorch"), std::string::npos) << run.out;
}

TEST(StepBenchmark, SetsMuonBesideAdamWAndElementwiseWorkBesideATriad) {
  const ScratchDirectory scratch;
  const std::string json = scratch / "figures.json";
  const Outcome run = run_program(EBB_FIXTURES "/../bench/step",
                                  {EBB_BIN, scratch.path(), "--rounds", "1", "--matrices", "1",
                                   "--elems", "100000", "--json", json});
  ASSERT_EQ(run.exit, 0) << run.out << run.err;
  const std::string figures = text_of(json);
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
