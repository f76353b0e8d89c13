// The samples the safetensors library and torch wrote, and damaged ones with their exact refusal.
#include <gtest/gtest.h>

#include "ebb/formats/safetensors/safetensors.h"
#include "tests/support/expected.h"
#include "tests/support/source_tree.h"

namespace ebb {

namespace {

using test_support::Compare;
namespace fs = std::filesystem;

fs::path fixture(std::string_view name) { return fs::path(EBB_FIXTURES) / "safetensors" / name; }

class SafetensorsFixture : public testing::TestWithParam<std::string_view> {};

TEST_P(SafetensorsFixture, HasTheExpectedContent) {
  auto tree = test_support::load_tree(fixture(GetParam()) / "data");
  ASSERT_TRUE(formats::detect_safetensors(*tree));
  const auto checkpoint = formats::describe_safetensors(tree);
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  EXPECT_TRUE(prove_coverage((*checkpoint)->catalog()));
  EXPECT_EQ(test_support::differences(**checkpoint, fixture(GetParam()) / "expected.json",
                                      Compare::tensors_and_values),
            "");
}

INSTANTIATE_TEST_SUITE_P(Good, SafetensorsFixture,
                         testing::Values("all_dtypes", "odd_header_spaces", "dcp_hf_index",
                                         "dcp_hf_sharded_w3"));

class SafetensorsRefusal : public testing::TestWithParam<std::string_view> {};

TEST_P(SafetensorsRefusal, SaysWhy) {
  const auto checkpoint =
      formats::describe_safetensors(test_support::load_tree(fixture(GetParam()) / "data"));
  ASSERT_FALSE(checkpoint);
  const std::string reason = test_support::expected_error(fixture(GetParam()) / "expected.json");
  ASSERT_NE(reason, "");
  EXPECT_TRUE(checkpoint.error().message.ends_with(": " + reason)) << checkpoint.error().message;
  EXPECT_NE(checkpoint.error().message.find("model.safetensors:"), std::string::npos);
}

INSTANTIATE_TEST_SUITE_P(Bad, SafetensorsRefusal,
                         testing::Values("bad_overlap", "bad_header_length", "bad_duplicate_key",
                                         "bad_hole", "bad_shape_product", "bad_nan_in_json"));

TEST(SafetensorsSharded, KnowsTheRankOfEachShard) {
  const auto checkpoint =
      formats::describe_safetensors(test_support::load_tree(fixture("dcp_hf_sharded_w3") / "data"));
  ASSERT_TRUE(checkpoint);
  const Catalog& catalog = (*checkpoint)->catalog();
  EXPECT_EQ(catalog.world, 3u);
  EXPECT_EQ(catalog.producer, "torch DCP safetensors writer 1.0");
  ASSERT_EQ(catalog.files.size(), 3u);
  EXPECT_EQ(catalog.files[2].rank, Rank{2});
}

TEST(SafetensorsSharded, NoticesAMissingShardInTheMiddle) {
  const auto whole = test_support::load_tree(fixture("dcp_hf_sharded_w3") / "data");
  auto tree = std::make_shared<test_support::MemoryTree>("ckpt");
  for (const auto& entry : whole->entries())
    if (!entry.name.starts_with("shard-00002")) tree->add(entry.name, whole->bytes_of(entry.name));
  const auto checkpoint = formats::describe_safetensors(tree);
  ASSERT_FALSE(checkpoint);
  EXPECT_EQ(checkpoint.error().code, Code::incomplete);
  EXPECT_EQ(checkpoint.error().message, "ckpt: shard files missing: 2");
}

TEST(SafetensorsFixtures, AnyChangedByteOfTheHeaderIsReadOrRefused) {
  const auto whole = test_support::load_tree(fixture("dcp_hf_sharded_w3") / "data");
  const std::string name = "shard-00001-model-00001-of-00001.safetensors";
  const ByteVector bytes = whole->bytes_of(name);
  std::size_t refused = 0, read = 0;
  for (std::size_t at = 0; at < 600; ++at) {
    for (const unsigned flip : {0x01u, 0x20u, 0x80u}) {
      whole->bytes_of(name)[at] = bytes[at] ^ static_cast<std::byte>(flip);
      const auto checkpoint = formats::describe_safetensors(whole);
      ++(checkpoint ? read : refused);
      if (!checkpoint) {
        EXPECT_NE(checkpoint.error().message, "");
        continue;
      }
      const auto proof = prove_coverage((*checkpoint)->catalog());
      EXPECT_TRUE(proof || !proof.error().message.empty());
    }
    whole->bytes_of(name)[at] = bytes[at];
  }
  EXPECT_GT(refused, 1000u);
  EXPECT_GT(read, 100u);
}

TEST(SafetensorsFixtures, EveryPrefixOfAFileIsRefused) {
  const auto whole = test_support::load_tree(fixture("all_dtypes") / "data");
  const ByteVector& bytes = whole->bytes_of("model.safetensors");
  for (std::size_t length = 0; length < bytes.size(); ++length) {
    auto tree = std::make_shared<test_support::MemoryTree>("cut");
    tree->add("model.safetensors",
              ByteVector(bytes.begin(), bytes.begin() + static_cast<std::ptrdiff_t>(length)));
    EXPECT_FALSE(formats::describe_safetensors(tree)) << "prefix of " << length << " bytes";
  }
}

}  // namespace

}  // namespace ebb
