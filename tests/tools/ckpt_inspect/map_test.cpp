// ckpt-inspect --map: what is drawn is what --shards --json lists.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <tuple>

#include "tests/tools/ckpt_inspect/inspect.h"
#include "tests/tools/ckpt_inspect/json.h"
#include "tests/tools/pictures.h"

namespace ebb::map_test {
namespace {

namespace fs = std::filesystem;
using inspect_test::bytes_of;
using inspect_test::inspect;
using inspect_test::list_in;
using inspect_test::parsed;
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
  for (const element strip : list_in(data, "strips")) {
    std::vector<std::int64_t> numbers;
    for (const element number : list_in(strip, "numbers")) numbers.push_back(number_in(number));
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
  for (const element shard : list_in(document, "shards")) {
    if (number_in(shard["length"].value()) == 0) continue;  // a rank that has nothing of it
    all.emplace(text_in(shard["name"].value()), text_in(shard["state"].value()),
                number_in(shard["rank"].value()), text_in(shard["file"].value()),
                number_in(shard["offset"].value()),
                number_in(shard["offset"].value()) + number_in(shard["length"].value()));
  }
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
  EXPECT_EQ(drawn(parsed(of_page, data)), listed(parsed(of_tool, shards)));
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

// A shard of a vector that says that it begins at this row, and not at row 6 as it does.
std::string map_with_shard_at(const std::string& row) {
  const ScratchDirectory scratch;
  fs::copy(fs::path(EBB_FIXTURES) / "safetensors/dcp_hf_sharded_w3/data", scratch / "x");
  const std::string file = scratch / "x/shard-00003-model-00001-of-00001.safetensors";
  std::string bytes = test_support::text_of_file(file);
  const std::string before = R"(\"v\": {\"saved_offsets\": [)";
  bytes.replace(bytes.find(before) + before.size(), 1, row);
  std::ofstream(file, std::ios::binary) << bytes;
  return map_of(scratch, scratch / "x");
}

TEST(InspectMap, DrawsHolesAndOverlaps) {
  const std::string hole = map_with_shard_at("7"), overlap = map_with_shard_at("5");
  EXPECT_EQ(hole.find("\"holes\": []"), std::string::npos) << hole;
  EXPECT_EQ(count_of(hole, "also by rank"), 0u);
  EXPECT_NE(overlap.find("\"holes\": []"), std::string::npos);
  EXPECT_EQ(count_of(overlap, "also by rank"), 2u) << overlap;
  EXPECT_NE(overlap.find("rows 5, also by rank 1 in shard-00002"), std::string::npos) << overlap;
}

// As far as an index tells what would lie there; it stays an error.
TEST(InspectMap, OfWhatIsNotWholeLeavesOpenWhatIsMissing) {
  const ScratchDirectory scratch;
  const fs::path megatron = fs::path(scratch / "megatron");
  fs::copy(fs::path(EBB_FIXTURES) / "megatron/muon_layerwise_tp2_dp2/data", megatron,
           fs::copy_options::recursive);
  fs::remove(megatron / "iter_0000003/__1_0.distcp");
  const std::vector<std::pair<std::string, std::string>> sources = {
      {"dcp/bad_missing_file/data", "payload file __1_0.distcp is missing"},
      {"dcp/bad_hole/data", "rows 5-8"},
      {"dcp/bad_no_storage_entry/data", "storage_data has no entry"},
      {"dcp/bad_item_past_eof/data", "past the end of its file"},
      {megatron.string(), "payload file __1_0.distcp is missing"}};
  for (const auto& [source, why] : sources) {
    const std::string file = scratch / "map.html";
    fs::remove(file);
    const Outcome run = inspect({source, "--map", file});
    EXPECT_EQ(run.exit, 3) << source << run.err;
    EXPECT_NE(run.err.find(why), std::string::npos) << source << ": " << run.err;
    EXPECT_NE(run.out.find("shard map: "), std::string::npos) << source << ": " << run.out;
    ASSERT_TRUE(fs::exists(file)) << source;
    const std::string data = data_of_picture(file);
    EXPECT_EQ(data.find("\"holes\": []"), std::string::npos) << source << data;
  }
  const Outcome nothing =
      inspect({"dcp/bad_metadata_truncated/data", "--map", scratch / "nothing.html"});
  EXPECT_EQ(nothing.exit, 3) << nothing.err;
  EXPECT_FALSE(fs::exists(scratch / "nothing.html"));
}

TEST(InspectMap, DrawsPadding) {
  const ScratchDirectory scratch;
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
}  // namespace ebb::map_test
