// ckpt-inspect --stats --picture: the numbers of --stats --json, by layer.
#include <gtest/gtest.h>
#include <simdjson.h>

#include <cmath>
#include <filesystem>
#include <map>

#include "tests/tools/ckpt_inspect/inspect.h"
#include "tests/tools/pictures.h"

namespace ebb {
namespace {

using inspect_test::inspect;
using simdjson::dom::element;
using test_support::Outcome;
using test_support::ScratchDirectory;

// Of a tensor: the sum of the squares of what is drawn of it.
using Squares = std::map<std::pair<std::string, std::string>, double>;

Squares drawn(element data) {
  Squares all;
  for (const element row : data["tensors"].get_array().value()) {
    double norm = 0;
    if (row.at(5).value()["norm"].get_double().get(norm) != simdjson::SUCCESS) continue;
    all[{std::string(row.at(0).value().get_string().value()),
         std::string(row.at(1).value().get_string().value())}] += norm * norm;
  }
  return all;
}

TEST(InspectNorms, OfTheLayersOfAStackMakeThatOfTheTensor) {
  for (const char* path :
       {"megatron/muon_layerwise_tp2_dp2/data", "deepspeed/z3_muon_bf16_w4/data"}) {
    const ScratchDirectory scratch;
    const Outcome run = inspect({path, "--stats", "--picture", scratch / "n.html", "--json"});
    ASSERT_EQ(run.exit, 0) << run.err;
    simdjson::dom::parser of_page, of_tool;
    const std::string data = data_of_picture(scratch / "n.html");
    const Squares squares = drawn(of_page.parse(data).value());
    std::size_t compared = 0;
    for (const element tensor : of_tool.parse(run.out).value()["tensors"].get_array().value()) {
      double norm = 0;
      if (tensor["stats"]["norm"].get_double().get(norm) != simdjson::SUCCESS) continue;
      const double found = squares.at({std::string(tensor["name"].get_string().value()),
                                       std::string(tensor["state"].get_string().value())});
      EXPECT_NEAR(std::sqrt(found), norm, 1e-12 * norm) << path;
      ++compared;
    }
    EXPECT_GT(compared, 10u);
  }
}

TEST(InspectNorms, OfAStackHaveALayerEach) {
  const ScratchDirectory scratch;
  ASSERT_EQ(
      inspect({"megatron/muon_layerwise_tp2_dp2/data", "--stats", "--picture", scratch / "n.html"})
          .exit,
      0);
  const std::string data = data_of_picture(scratch / "n.html");
  EXPECT_TRUE(
      data.starts_with("{\"layers\": [[\"decoder.layers\", 0, 0], [\"decoder.layers\", 1, 1]"))
      << data.substr(0, 200);
}

TEST(InspectNorms, ArePartOfStatsAndReplaceNothingElse) {
  const ScratchDirectory scratch;
  const std::string file = scratch / "n.html";
  EXPECT_EQ(inspect({"dcp/hsdp_2x2/data", "--picture", file}).exit, 2);
  EXPECT_EQ(inspect({"dcp/hsdp_2x2/data", "--stats", "--picture", file, "-n", "3"}).exit, 2);
  EXPECT_FALSE(std::filesystem::exists(file));
  ASSERT_EQ(inspect({"dcp/hsdp_2x2/data", "--map", file}).exit, 0);
  const Outcome run = inspect({"dcp/hsdp_2x2/data", "--stats", "--picture", file});
  EXPECT_EQ(run.exit, 2);
  EXPECT_TRUE(inspect_test::says(run.err, "it is there, and no picture of norms")) << run.err;
}

}  // namespace
}  // namespace ebb
