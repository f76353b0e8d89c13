// ckpt-convert -n --plan: what stays, what moves, between which ranks.
#include <gtest/gtest.h>

#include <filesystem>
#include <regex>

#include "tests/support/program.h"
#include "tests/tools/convert.h"
#include "tests/tools/pictures.h"

namespace ebb {
namespace {

using test_support::Outcome;
using test_support::says;
using test_support::ScratchDirectory;

std::uint64_t number_of(const std::string& json, const std::string& key) {
  std::smatch match;
  const std::regex pattern("\"" + key + "\": ([0-9]+)");
  return std::regex_search(json, match, pattern) ? std::stoull(match[1]) : ~std::uint64_t{0};
}

// Flows of --json, as the page has them: [[from, to, bytes], ...]
std::string flows_of(const std::string& json) {
  const std::regex flow("\\{\"from\": ([0-9]+), \"to\": ([0-9]+), \"bytes\": ([0-9]+)\\}");
  std::string out = "\"flows\": [";
  for (std::sregex_iterator at(json.begin(), json.end(), flow), end; at != end; ++at)
    out += std::string(out.ends_with('[') ? "" : ", ") + "[" + (*at)[1].str() + ", " +
           (*at)[2].str() + ", " + (*at)[3].str() + "]";
  return out + "]";
}

TEST(ConvertPlan, DrawsTheFlowsThatItSays) {
  const ScratchDirectory scratch;
  for (const char* world : {"1", "3", "6"}) {
    const Outcome run = convert({"deepspeed/z3_muon_bf16_w4/data", scratch / "out", "--to", "dcp",
                                 "-w", world, "-n", "--plan", scratch / "p.html", "--json"});
    ASSERT_EQ(run.exit, 0) << run.err;
    const std::string data = data_of_picture(scratch / "p.html");
    EXPECT_TRUE(says(data, flows_of(run.out))) << run.out;
    EXPECT_GT(number_of(run.out, "moving_bytes"), 0u);
    EXPECT_FALSE(std::filesystem::exists(scratch / "out"));
  }
}

// Of a checkpoint for as many ranks, cut the same way, nothing moves; all of it stays.
TEST(ConvertPlan, NothingMovesWhereNothingChanges) {
  const ScratchDirectory scratch;
  const std::string copy = scratch / "copy";
  ASSERT_EQ(convert({"deepspeed/z3_muon_bf16_w4/data", copy, "--to", "dcp", "-w", "3"}).exit, 0);
  const Outcome run = convert({copy, scratch / "out", "--to", "dcp", "-w", "3", "-n", "--plan",
                               scratch / "p.html", "--json"});
  ASSERT_EQ(run.exit, 0) << run.err;
  EXPECT_EQ(number_of(run.out, "moving_bytes"), 0u) << run.out;
  const std::string all = test_support::run_program("ckpt-inspect", {copy, "--json"}).out;
  EXPECT_EQ(number_of(run.out, "staying_bytes"), number_of(all, "bytes")) << all;
}

TEST(ConvertPlan, IsAPartOfTheDryRun) {
  const ScratchDirectory scratch;
  const Outcome run =
      convert({"dcp/hsdp_2x2/data", scratch / "out", "--to", "dcp", "--plan", scratch / "p.html"});
  EXPECT_EQ(run.exit, 2);
  EXPECT_TRUE(says(run.err, "hint: add -n")) << run.err;
  const Outcome text = convert(
      {"dcp/hsdp_2x2/data", scratch / "out", "--to", "dcp", "-n", "--plan", scratch / "p.html"});
  EXPECT_EQ(text.exit, 0) << text.err;
  EXPECT_TRUE(says(text.out, " move between ranks (")) << text.out;
}

}  // namespace
}  // namespace ebb
