// Several files: what the index promises must be there.
#include <gtest/gtest.h>

#include "ebb/formats/safetensors/documents.h"
#include "ebb/formats/safetensors/safetensors.h"
#include "tests/support/safetensors_file.h"
#include "tests/support/source_tree.h"

namespace ebb {

namespace {

using test_support::MemoryTree;

ByteVector file_with_tensor(std::string_view key) {
  const std::string header =
      "{\"" + std::string(key) + "\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}";
  return test_support::safetensors_bytes(header, 4);
}

std::shared_ptr<MemoryTree> tree_with(std::string_view index) {
  auto tree = std::make_shared<MemoryTree>("ckpt");
  tree->add("model-00001-of-00002.safetensors", file_with_tensor("a"));
  tree->add("model-00002-of-00002.safetensors", file_with_tensor("b"));
  if (!index.empty()) tree->add("model.safetensors.index.json", index);
  return tree;
}

std::string refusal(std::shared_ptr<const MemoryTree> tree) {
  const auto checkpoint = formats::describe_safetensors(std::move(tree));
  return checkpoint ? "accepted" : checkpoint.error().message;
}

constexpr std::string_view kGood =
    R"({"metadata":{"total_size":8},"weight_map":{"a":"model-00001-of-00002.safetensors",)"
    R"("b":"model-00002-of-00002.safetensors"}})";

std::string index_with(std::string_view from, std::string_view to) {
  std::string index(kGood);
  return index.replace(index.find(from), from.size(), to);
}

TEST(SafetensorsIndex, BindsTheFilesTogether) {
  const auto checkpoint = formats::describe_safetensors(tree_with(kGood));
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  EXPECT_EQ((*checkpoint)->catalog().tensors.size(), 2u);
}

TEST(SafetensorsIndex, CannotNameAFileOutsideTheCheckpoint) {
  EXPECT_EQ(refusal(tree_with(index_with("model-00002-of-00002.safetensors", "../x"))),
            "ckpt/model.safetensors.index.json:86: weight_map: 'b' lies in '../x', which is no "
            "plain file name");
  EXPECT_EQ(refusal(tree_with(index_with("model-00002-of-00002.safetensors", "/etc/passwd"))),
            "ckpt/model.safetensors.index.json:86: weight_map: 'b' lies in '/etc/passwd', which "
            "is no plain file name");
}

TEST(SafetensorsIndex, NamesAMissingFile) {
  EXPECT_EQ(refusal(tree_with(index_with("model-00002", "model-00003"))),
            "ckpt/model-00003-of-00002.safetensors: missing, though model.safetensors.index.json "
            "says tensors are there");
}

TEST(SafetensorsIndex, NamesAKeyItsFileLacks) {
  EXPECT_EQ(refusal(tree_with(index_with("\"b\"", "\"c\""))),
            "ckpt/model.safetensors.index.json:0: tensor 'c' should lie in "
            "model-00002-of-00002.safetensors, but that file does not hold it");
}

TEST(SafetensorsIndex, ChecksTheTotalSize) {
  EXPECT_EQ(refusal(tree_with(index_with(":8}", ":9}"))),
            "ckpt/model.safetensors.index.json:0: total_size is 9 but the tensors have 8 bytes");
}

TEST(SafetensorsIndex, NeedsAWeightMap) {
  EXPECT_EQ(refusal(tree_with("{}")),
            "ckpt/model.safetensors.index.json:0: the index has no weight_map");
}

TEST(SafetensorsFiles, TheSameKeyInTwoFilesIsRefused) {
  auto tree = std::make_shared<MemoryTree>("ckpt");
  tree->add("one.safetensors", file_with_tensor("a"));
  tree->add("two.safetensors", file_with_tensor("a"));
  EXPECT_EQ(refusal(tree), "ckpt/two.safetensors:62: tensor 'a' is already in one.safetensors");
}

TEST(SafetensorsFiles, NumberedOnesMustBeComplete) {
  auto tree = std::make_shared<MemoryTree>("ckpt");
  tree->add("model-00001-of-00003.safetensors", file_with_tensor("a"));
  tree->add("model-00003-of-00003.safetensors", file_with_tensor("b"));
  EXPECT_EQ(refusal(tree), "ckpt: of the 3 files of model-*, these are missing: 2");
}

}  // namespace

}  // namespace ebb
