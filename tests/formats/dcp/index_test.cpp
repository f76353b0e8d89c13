// DCP metadata that lies (D01-D16 of the bad-input catalogue): each with its sentence.
#include <gtest/gtest.h>

#include <string>

#include "ebb/formats/dcp/dcp.h"
#include "ebb/formats/dcp/emit_index.h"
#include "ebb/formats/pickle/pickle_writer.h"
#include "tests/support/source_tree.h"

namespace ebb {

namespace {

using formats::describe_dcp;
using formats::dcp::WrittenTensor;

constexpr std::uint64_t kFileBytes = 10000;

// Describes metadata beside one payload file of zeros.
Result<std::unique_ptr<Checkpoint>> describe_bytes(ByteVector metadata) {
  auto tree = std::make_shared<test_support::MemoryTree>("ck");
  tree->add(".metadata", std::move(metadata));
  tree->add("__0_0.distcp", ByteVector(kFileBytes));
  return describe_dcp(tree);
}

struct StoredChunk {
  Box box;
  std::string file;
  std::uint64_t offset = 0;
};
struct StoredTensor {
  Shape shape;
  std::vector<StoredChunk> chunks;
};

// Every chunk in a file of its own name, 100 bytes long.
Error refusal(const std::vector<StoredTensor>& stored) {
  std::vector<WrittenTensor> tensors;
  formats::dcp::WrittenFiles files;
  for (const StoredTensor& tensor : stored) {
    WrittenTensor& written = tensors.emplace_back();
    written = {"w", {"w"}, DType::f32, tensor.shape, {}};
    for (const StoredChunk& chunk : tensor.chunks) {
      const auto number = static_cast<std::uint32_t>(files.names.size());
      files.names.push_back(chunk.file);
      files.places.push_back({{chunk.offset, 100}});
      written.chunks.push_back({chunk.box, {number, 0}});
    }
  }
  const auto checkpoint = describe_bytes(formats::dcp::index_bytes(tensors, {}, files));
  return checkpoint ? Error{} : checkpoint.error();
}

std::string message(const std::vector<StoredTensor>& tensors) { return refusal(tensors).message; }

StoredTensor tensor(Shape shape, std::vector<StoredChunk> chunks) {
  return {std::move(shape), std::move(chunks)};
}

StoredChunk chunk(Box box, std::uint64_t offset = 0, std::string file = "__0_0.distcp") {
  return {std::move(box), std::move(file), offset};
}

TEST(DcpIndex, ASoundOneIsAccepted) {
  EXPECT_EQ(message({tensor({4, 2}, {chunk({{0, 0}, {4, 2}})})}), "");
}

TEST(DcpIndex, D03PathsThatLeaveTheCheckpointAreRefused) {
  for (const std::string_view file : {"../../etc/passwd", "/etc/passwd", "..", "a/b", "a\\b", ""}) {
    const Error error = refusal({tensor({4}, {chunk({{0}, {4}}, 0, std::string(file))})});
    EXPECT_EQ(error.code, Code::corrupt);
    EXPECT_NE(error.message.find("is not a plain file name: it would leave the checkpoint"),
              std::string::npos)
        << error.message;
  }
}

TEST(DcpIndex, D04ChunksOutsideTheTensorAreRefused) {
  EXPECT_EQ(message({tensor({4, 2}, {chunk({{2, 0}, {3, 2}})})}),
            "ck/.metadata: \"w\": chunk [2:5, 0:2] lies outside the tensor's shape [4, 2]");
}

TEST(DcpIndex, D05D06OverlapsAndHolesNameTheTensorAndItsRows) {
  const std::string overlap = message({tensor({4}, {chunk({{0}, {3}}), chunk({{2}, {2}}, 200)})});
  EXPECT_NE(overlap.find("w: row 2 is in shards"), std::string::npos) << overlap;
  const std::string hole = message({tensor({4}, {chunk({{0}, {2}})})});
  EXPECT_NE(hole.find("w: rows 2-3 are in no shard"), std::string::npos) << hole;
}

TEST(DcpIndex, D07OffsetsAndSizesOfDifferentRankAreRefused) {
  EXPECT_EQ(
      message({tensor({4, 2}, {chunk({{0, 0}, {4}})})}),
      "ck/.metadata: \"w\": a chunk has 2 offsets and 1 sizes, but the tensor has 2 dimensions");
}

TEST(DcpIndex, D08NegativeNumbersAreRefused) {
  const std::uint64_t minus_one = ~std::uint64_t{0};
  EXPECT_EQ(message({tensor({4}, {chunk({{minus_one}, {4}})})}),
            "ck/.metadata: \"w\": a chunk's offsets or sizes are not made of counts");
  EXPECT_EQ(message({tensor({minus_one}, {})}),
            "ck/.metadata: \"w\": its size is not made of counts");
}

TEST(DcpIndex, D08SizesThatWrapAreRefused) {
  const std::uint64_t half = std::uint64_t{1} << 62;
  EXPECT_NE(message({tensor({half, 4}, {})}).find("does not fit 64 bits"), std::string::npos);
  EXPECT_NE(message({tensor({half}, {})}).find("does not fit 64 bits"), std::string::npos);
}

TEST(DcpIndex, D09ItemsPastTheEndOfTheirFileAreRefused) {
  EXPECT_EQ(
      message({tensor({4}, {chunk({{0}, {4}}, kFileBytes - 99)})}),
      "ck/__0_0.distcp:9901: the item of tensor \"w\" is 100 bytes long and lies past the end "
      "of its file of 10000 bytes");
  EXPECT_NE(message({tensor({4}, {chunk({{0}, {4}}, (std::uint64_t{1} << 63) - 1)})}), "");
}

TEST(DcpIndex, ItemsOnEachOtherAreRefused) {
  const std::string text = message({tensor({4}, {chunk({{0}, {2}}), chunk({{2}, {2}}, 50)})});
  EXPECT_EQ(text,
            "ck/__0_0.distcp:50: the items of tensor \"w\" and tensor \"w\" overlap in the file");
}

TEST(DcpIndex, D10MissingFilesNameWhatLivedInThem) {
  const Error error = refusal({tensor({4}, {chunk({{0}, {4}}, 0, "__1_0.distcp")})});
  EXPECT_EQ(error.code, Code::incomplete);
  EXPECT_EQ(error.message,
            "ck/__1_0.distcp: payload file __1_0.distcp is missing; it held \"w\" [0:4]");
}

TEST(DcpIndex, D12OneKeyTwiceIsRefused) {
  EXPECT_EQ(message({tensor({4}, {chunk({{0}, {4}})}), tensor({4}, {chunk({{0}, {4}})})}),
            "ck/.metadata: \"w\": the key is listed twice");
}

TEST(DcpIndex, D13ScalarsHaveOneChunk) {
  EXPECT_NE(message({tensor({}, {chunk({{}, {}}), chunk({{}, {}})})}), "");
}

TEST(DcpIndex, D14EmptyTensorsNeedNoItem) {
  EXPECT_EQ(message({tensor({0, 5}, {})}), "");
  EXPECT_EQ(message({tensor({4}, {chunk({{0}, {4}}), chunk({{4}, {0}})})}), "");
}

TEST(DcpIndex, D15D16UnknownPartsAndPathsAreNoted) {
  formats::PickleWriter pickle;
  pickle.object("torch.distributed.checkpoint.metadata", "Metadata", [&] {
    for (const std::string_view name : {"state_dict_metadata", "storage_data"})
      pickle.entry(name, [&] { pickle.empty_dict(); });
    pickle.entry("planner_data", [&] { pickle.empty_list(); });
    pickle.entry("holograms", 3);
  });
  const auto checkpoint = describe_bytes(pickle.finish());
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  std::string notes;
  for (const std::string& note : (*checkpoint)->catalog().notes) notes += note + "\n";
  EXPECT_NE(notes.find("does not know: \"holograms\""), std::string::npos) << notes;
  EXPECT_NE(notes.find("planner_data is not a map of key paths"), std::string::npos) << notes;
  EXPECT_NE(notes.find("__0_0.distcp is referred to by nothing"), std::string::npos) << notes;
}

TEST(DcpIndex, SomethingElseThanMetadataIsRefused) {
  formats::PickleWriter pickle;
  pickle.empty_dict();
  const auto checkpoint = describe_bytes(pickle.finish());
  ASSERT_FALSE(checkpoint.has_value());
  EXPECT_EQ(checkpoint.error().message, "ck/.metadata: the pickle is no DCP Metadata object");
}

}  // namespace

}  // namespace ebb
