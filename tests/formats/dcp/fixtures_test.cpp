// Every DCP checkpoint that torch itself wrote, read and compared with what torch said it holds.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <string>
#include <vector>

#include "ebb/formats/dcp/dcp.h"
#include "tests/formats/dcp/dcp_fixtures.h"
#include "tests/support/expected.h"
#include "tests/support/source_tree.h"

namespace ebb {

namespace {

namespace fs = std::filesystem;
using formats::describe_dcp;
using test_support::Compare;

std::vector<std::string> good_cases() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(kFixtures)) {
    const std::string name = entry.path().filename();
    if (entry.is_directory() && !name.starts_with("bad_")) names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

std::string test_name(const testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  std::replace_if(name.begin(), name.end(), [](char c) { return c == '.' || c == '-'; }, '_');
  return name;
}

class DcpFixture : public testing::TestWithParam<std::string> {};

TEST_P(DcpFixture, HoldsWhatTorchSaidItHolds) {
  const fs::path folder = kFixtures / GetParam();
  const auto tree = test_support::load_tree(folder / "data");
  ASSERT_TRUE(formats::detect_dcp(*tree));
  const auto checkpoint = describe_dcp(tree);
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  EXPECT_EQ(test_support::differences(**checkpoint, folder / "expected.json",
                                      Compare::tensors_and_values),
            "");
}

INSTANTIATE_TEST_SUITE_P(Cases, DcpFixture, testing::ValuesIn(good_cases()), test_name);

struct Refusal {
  std::string_view folder;
  Code code;
  std::vector<std::string_view> says;  // each part must be in the message
};

const std::vector<Refusal> kRefusals = {
    {"bad_hole", Code::incomplete, {"model.big", "rows 5-8"}},
    {"bad_item_past_eof",
     Code::corrupt,
     {"__1_0.distcp:1261: ", "\"model.w\"", "5673 bytes", "past the end", "6056 bytes"}},
    {"bad_metadata_system_call", Code::corrupt, {".metadata:874: ", "\"posix.system\""}},
    {"bad_metadata_truncated", Code::corrupt, {".metadata:2: ", "ends at byte 1082", "cut off"}},
    {"bad_missing_file",
     Code::incomplete,
     {"__1_0.distcp is missing", "\"model.w\" [4:7, 0:4]", "\"model.b\" [2:3]"}},
    {"bad_no_storage_entry",
     Code::incomplete,
     {"storage_data has no entry", "\"model.b\"", "offset [2]"}},
    {"bad_overlap", Code::corrupt, {"model.w", "row 3 ", "ranks 0 and 1"}},
    {"bad_payload_shape",
     Code::corrupt,
     {"\"model.big\" [5:9, 0:5]", "shape [4, 5]", "tensor of F32 and shape [3, 5]"}},
    {"bad_uncommitted", Code::incomplete, {"never committed", "only .metadata.tmp exists"}},
};

// Describes, then reads everything, as a digest does; the first error.
Error refusal_of(std::shared_ptr<const formats::SourceTree> tree) {
  const auto checkpoint = describe_dcp(std::move(tree));
  if (!checkpoint) return checkpoint.error();
  for (const TensorEntry& tensor : (*checkpoint)->catalog().tensors)
    if (const auto digest = test_support::sha256_of(**checkpoint, tensor); !digest)
      return digest.error();
  return {};
}

TEST(BadDcpFixture, IsRefusedWithItsReason) {
  for (const Refusal& wanted : kRefusals) {
    const fs::path folder = kFixtures / wanted.folder;
    ASSERT_NE(test_support::expected_error(folder / "expected.json"), "");
    const Error error = refusal_of(test_support::load_tree(folder / "data"));
    EXPECT_EQ(error.code, wanted.code) << wanted.folder << ": " << error.message;
    for (const std::string_view part : wanted.says)
      EXPECT_NE(error.message.find(part), std::string::npos) << part << " in " << error.message;
  }
}

TEST(BadDcpFixture, EveryOneOfThemIsInTheTable) {
  for (const auto& entry : fs::directory_iterator(kFixtures)) {
    const std::string name = entry.path().filename();
    if (!name.starts_with("bad_")) continue;
    EXPECT_TRUE(std::any_of(kRefusals.begin(), kRefusals.end(), [&](const Refusal& refusal) {
      return refusal.folder == name;
    })) << name;
  }
}

TEST(BadDcpFixture, ExecutesNothing) {
  refusal_of(test_support::load_tree(kFixtures / "bad_metadata_system_call" / "data"));
  EXPECT_FALSE(fs::exists("PWNED"));
}

TEST(BadDcpFixture, EveryPrefixOfTheMetadataIsRefused) {
  const auto tree = test_support::load_tree(kFixtures / "no_collectives_w2" / "data");
  const ByteVector whole = tree->bytes_of("__0.metadata");
  for (std::size_t size = 0; size < whole.size(); ++size) {
    tree->bytes_of("__0.metadata").resize(size);
    EXPECT_FALSE(describe_dcp(tree).has_value()) << size;
    tree->bytes_of("__0.metadata") = whole;
  }
  EXPECT_TRUE(describe_dcp(tree).has_value());
}

TEST(BadDcpFixture, EveryPrefixOfAPayloadFileIsRefused) {
  const auto good = test_support::load_tree(kFixtures / "no_collectives_w2" / "data");
  const ByteVector whole = good->bytes_of("__1_0.distcp");
  for (std::size_t size = 0; size < whole.size(); ++size) {
    good->bytes_of("__1_0.distcp").resize(size);
    EXPECT_NE(refusal_of(good).message, "") << size;
    good->bytes_of("__1_0.distcp") = whole;
  }
}

TEST(DcpRead, ChecksTheCrcOfAnItemReadInPartsInAnyOrder) {
  const auto tree = test_support::load_tree(kFixtures / "fsdp2_w1" / "data");
  const auto checkpoint = describe_dcp(tree);
  ASSERT_TRUE(checkpoint.has_value());
  const TensorEntry& tensor = (*checkpoint)->catalog().tensors.front();
  const Chunk& chunk = tensor.chunks.front();
  const std::uint64_t half = formats::volume(chunk.box.extent) * bytes_of(tensor.dtype) / 2;
  ByteVector part(half);
  ASSERT_TRUE((*checkpoint)->read(tensor, chunk, half, part).has_value());
  ByteVector whole(2 * half);
  ASSERT_TRUE((*checkpoint)->read(tensor, chunk, 0, whole).has_value());
  EXPECT_TRUE(std::equal(part.begin(), part.end(), whole.begin() + std::ptrdiff_t(half)));

  ByteVector& file = tree->bytes_of("__0_0.distcp");
  const auto at = std::search(file.begin(), file.end(), whole.begin(), whole.end());
  ASSERT_NE(at, file.end());
  *at ^= std::byte{4};
  ASSERT_TRUE((*checkpoint)->read(tensor, chunk, half, part).has_value());
  const auto noticed = (*checkpoint)->read(tensor, chunk, 0, part);
  ASSERT_FALSE(noticed.has_value());
  EXPECT_NE(noticed.error().message.find("'archive/data/0' fails its CRC32 check"),
            std::string::npos)
      << noticed.error().message;
}

TEST(BadDcpFixture, EveryFlippedBitOfAPayloadIsNoticedOrHarmless) {
  const auto tree = test_support::load_tree(kFixtures / "no_collectives_w2" / "data");
  const fs::path expected = kFixtures / "no_collectives_w2" / "expected.json";
  ByteVector& bytes = tree->bytes_of("__0_0.distcp");
  std::size_t noticed = 0;
  for (std::size_t at = 0; at < bytes.size(); ++at) {
    bytes[at] ^= std::byte{1};
    if (refusal_of(tree).message.empty()) {
      const auto checkpoint = describe_dcp(tree);
      EXPECT_EQ(test_support::differences(**checkpoint, expected, Compare::tensors), "") << at;
    } else {
      ++noticed;
    }
    bytes[at] ^= std::byte{1};
  }
  EXPECT_GT(noticed, bytes.size() / 4);
}

}  // namespace

}  // namespace ebb
