// A -> B -> A by ckpt-convert, on other ranks each way: what comes back is what was there. (Through
// HDF5: convert_hdf5_test.cpp.)
#include <gtest/gtest.h>

#include <algorithm>
#include <ostream>
#include <string>
#include <vector>

#include "tests/support/program.h"

namespace ebb {

namespace {

using test_support::Outcome;
using test_support::run_program;
using test_support::ScratchDirectory;

// What a trip gives back.
enum class Kept {
  everything,  // and nothing more
  tensors,     // all of them; B cannot hold every value, or adds some of its own
};

struct Trip {
  const char* fixture;
  const char* home;
  std::vector<std::string> as_before;  // arguments of the way back
  const char* through;
  Kept kept;
};

void PrintTo(const Trip& trip, std::ostream* out) {
  *out << trip.fixture << " through " << trip.through;
}

std::vector<Trip> trips() {
  struct Home {
    const char* fixture;
    const char* format;
    std::vector<std::string> as_before;
    std::vector<std::string> tensors_only;  // through these
  };
  const std::vector<Home> homes = {
      {"dcp/hsdp_2x2", "dcp", {}, {"deepspeed", "deepspeed-universal", "megatron"}},
      {"dcp/fsdp2_w3_bf16_fp32_master",
       "dcp",
       {},
       {"deepspeed", "deepspeed-universal", "megatron"}},
      {"deepspeed/z2_muon_bf16_w2", "deepspeed", {"-p", "zero12"}, {"megatron"}},
      {"deepspeed/z2_adamw_fp16_w2", "deepspeed", {"-p", "zero12"}, {"megatron"}},
      {"deepspeed/z3_muon_bf16_w4", "deepspeed", {"-p", "zero3"}, {"megatron"}},
      {"deepspeed/universal_z3_adamw", "deepspeed-universal", {}, {"megatron"}},
      {"megatron/muon_layerwise_tp2_dp2", "megatron", {}, {"deepspeed", "deepspeed-universal"}},
      {"safetensors/dcp_hf_sharded_w3",
       "safetensors",
       {},
       {"deepspeed", "deepspeed-universal", "megatron-fsdp", "ebb"}},
  };
  std::vector<Trip> all;
  for (const Home& home : homes)
    for (const char* through : {"dcp", "torch", "safetensors", "deepspeed", "deepspeed-universal",
                                "megatron", "megatron-fsdp", "ebb"}) {
      if (std::string(through) == home.format) continue;
      // Megatron's per-rank RNG states are objects of torch's there.
      if (std::string(home.fixture) == "megatron/muon_layerwise_tp2_dp2" &&
          std::string(through) == "torch")
        continue;
      const bool less = std::find(home.tensors_only.begin(), home.tensors_only.end(), through) !=
                        home.tensors_only.end();
      all.push_back({home.fixture, home.format, home.as_before, through,
                     less ? Kept::tensors : Kept::everything});
    }
  return all;
}

class ThereAndBack : public testing::TestWithParam<Trip> {
 protected:
  static Outcome convert(std::vector<std::string> arguments, Kept kept) {
    if (kept == Kept::tensors) arguments.emplace_back("--drop");
    return run_program("ckpt-convert", arguments);
  }
};

TEST_P(ThereAndBack, WhatComesBackIsWhatWasThere) {
  const Trip& trip = GetParam();
  const ScratchDirectory scratch;
  const std::string source = std::string(trip.fixture) + "/data";
  const std::string there = scratch / "there", back = scratch / "back";
  const Outcome away = convert({source, there, "-t", trip.through, "-w", "3"}, trip.kept);
  ASSERT_EQ(away.exit, 0) << away.err;
  std::vector<std::string> home = {there, back, "-t", trip.home, "-w", "2"};
  home.insert(home.end(), trip.as_before.begin(), trip.as_before.end());
  const Outcome again = convert(home, trip.kept);
  ASSERT_EQ(again.exit, 0) << again.err;
  std::vector<std::string> question = {source, "--diff", back};
  if (trip.kept == Kept::tensors) question.insert(question.end(), {"-k", "*"});
  const Outcome same = run_program("ckpt-inspect", question);
  EXPECT_EQ(same.exit, 0) << same.out << same.err;
}

INSTANTIATE_TEST_SUITE_P(Trips, ThereAndBack, testing::ValuesIn(trips()), [](const auto& one) {
  std::string name = std::string(one.param.fixture) + "_through_" + one.param.through;
  for (char& c : name)
    if (c == '/' || c == '-') c = '_';
  return name;
});

}  // namespace

}  // namespace ebb
