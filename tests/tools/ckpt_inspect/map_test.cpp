// ckpt-inspect --map: what is drawn is what --shards --json lists.
#include <gtest/gtest.h>
#include <simdjson.h>

#include <filesystem>
#include <set>
#include <tuple>

#include "tests/tools/ckpt_inspect/inspect.h"
#include "tests/tools/pictures.h"

namespace ebb {
namespace {

namespace fs = std::filesystem;
using inspect_test::bytes_of;
using inspect_test::inspect;
using inspect_test::write_safetensors;
using simdjson::dom::element;
using test_support::Outcome;
using test_support::ScratchDirectory;

std::string text_in(element what) { return std::string(what.get_string().value()); }
std::int64_t number_in(element what) { return what.get_int64().value(); }

// name, state, rank, file, offset, end
using Shard =
    std::tuple<std::string, std::string, std::int64_t, std::string, std::int64_t, std::int64_t>;

std::multiset<Shard> drawn(element data) {
  std::multiset<Shard> all;
  for (const element strip : data["strips"].get_array().value()) {
    std::vector<std::int64_t> numbers;
    for (const element number : strip["numbers"].get_array().value())
      numbers.push_back(number_in(number));
    std::array<std::int64_t, 5> now = {};
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      now[i % 5] += numbers[i];
      if (i % 5 != 4) continue;
      const auto [tensor, file, offset, beyond, place] = now;
      const element row = data["tensors"].at(static_cast<std::size_t>(tensor)).value();
      const element where = data["places"].at(static_cast<std::size_t>(place)).value();
      all.emplace(text_in(row.at(0).value()), text_in(row.at(1).value()),
                  number_in(strip["rank"].value()),
                  text_in(data["files"].at(static_cast<std::size_t>(file)).value()), offset,
                  offset + number_in(where.at(1).value()) + beyond);
    }
  }
  return all;
}

std::multiset<Shard> listed(element document) {
  std::multiset<Shard> all;
  for (const element shard : document["shards"].get_array().value())
    all.emplace(text_in(shard["name"].value()), text_in(shard["state"].value()),
                number_in(shard["rank"].value()), text_in(shard["file"].value()),
                number_in(shard["offset"].value()),
                number_in(shard["offset"].value()) + number_in(shard["length"].value()));
  return all;
}

class Map : public testing::TestWithParam<const char*> {};

TEST_P(Map, DrawsTheShardsThatAreListed) {
  const ScratchDirectory scratch;
  const Outcome map = inspect({GetParam(), "--map", scratch / "map.html"});
  ASSERT_EQ(map.exit, 0) << map.err;
  simdjson::dom::parser of_page, of_tool;
  const std::string data = data_of_picture(scratch / "map.html");
  const std::string shards = inspect({GetParam(), "--shards", "--json"}).out;
  EXPECT_EQ(drawn(of_page.parse(data).value()), listed(of_tool.parse(shards).value()));
}

INSTANTIATE_TEST_SUITE_P(Fixtures, Map,
                         testing::Values("dcp/hsdp_2x2/data", "dcp/tp_fsdp_2x2_strided/data",
                                         "deepspeed/z3_muon_bf16_w4/data",
                                         "megatron/muon_layerwise_tp2_dp2/data",
                                         "safetensors/dcp_hf_sharded_w3/data"),
                         [](const auto& one) {
                           std::string name = fs::path(one.param).parent_path().string();
                           for (char& c : name)
                             if (c == '/') c = '_';
                           return name;
                         });

std::string map_of(const ScratchDirectory& scratch, const std::string& checkpoint) {
  const Outcome run = inspect({checkpoint, "--map", scratch / "map.html"});
  EXPECT_EQ(run.exit, 0) << run.err;
  return data_of_picture(scratch / "map.html");
}

TEST(InspectMap, FindsTheLayersOfAStack) {
  const ScratchDirectory scratch;
  const std::string data = map_of(scratch, "megatron/muon_layerwise_tp2_dp2/data");
  EXPECT_NE(data.find("[\"decoder.layers\", 0, 0]"), std::string::npos) << data;
  EXPECT_NE(data.find("[\"decoder.layers\", 1, 1]"), std::string::npos) << data;
}

TEST(InspectMap, ADigitInsideAWordIsNoLayer) {
  const ScratchDirectory scratch;
  fs::create_directories(scratch / "fc");
  write_safetensors(scratch / "fc/model.safetensors", "F32", "[2]", bytes_of<float>({1, 2}),
                    "fc1.w");
  EXPECT_NE(map_of(scratch, scratch / "fc").find("\"layers\": []"), std::string::npos);
}

TEST(InspectMap, DrawsHolesOverlapsAndPadding) {
  const ScratchDirectory scratch;
  EXPECT_EQ(map_of(scratch, "dcp/bad_hole/data").find("\"holes\": []"), std::string::npos);
  EXPECT_EQ(count_of(map_of(scratch, "dcp/bad_overlap/data"), "also by rank"), 2u);
  EXPECT_NE(map_of(scratch, "deepspeed/z3_muon_bf16_w4/data").find("\"padding\": 20,"),
            std::string::npos);
}

TEST(InspectMap, OfANameThatIsMarkupIsStillAPage) {
  const ScratchDirectory scratch;
  fs::create_directories(scratch / "x");
  write_safetensors(scratch / "x/model.safetensors", "F32", "[2]", bytes_of<float>({1, 2}),
                    "</script><img onerror=alert(1)>");
  EXPECT_NE(map_of(scratch, scratch / "x").find("\\u003c/script>\\u003cimg onerror=alert(1)>"),
            std::string::npos);
  EXPECT_EQ(test_support::text_of_file(scratch / "map.html").find("<img"), std::string::npos);
}

TEST(InspectMap, OfOneRankDrawsWhatItWrote) {
  const ScratchDirectory scratch;
  const Outcome run =
      inspect({"dcp/tp_fsdp_2x2_strided/data", "--map", scratch / "map.html", "-r", "1"});
  ASSERT_EQ(run.exit, 0) << run.err;
  const std::string data = data_of_picture(scratch / "map.html");
  EXPECT_NE(data.find("\"rank\": 1,"), std::string::npos);
  EXPECT_EQ(data.find("\"rank\": 0,"), std::string::npos);
}

}  // namespace
}  // namespace ebb
