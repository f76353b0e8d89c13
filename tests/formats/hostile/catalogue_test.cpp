// Cases of tests/malformed.md that belong to no one format's tests, or are about several files.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>

#include "formats/catalog/catalog.h"
#include "formats/registry.h"
#include "tests/support/archives.h"
#include "tests/support/source_tree.h"

namespace {

using formats::ByteVector;
using test_support::archive_around;
using test_support::archive_of;
using test_support::ArchiveRecord;
using test_support::MemoryTree;
using test_support::PickleText;
using Method = ArchiveRecord::Method;

std::shared_ptr<MemoryTree> torch_tree(ByteVector archive) {
  auto tree = std::make_shared<MemoryTree>("t");
  tree->add("c.pt", std::move(archive));
  return tree;
}

// "" when it is read.
std::string refusal(std::shared_ptr<MemoryTree> tree) {
  const auto checkpoint = formats::describe(std::move(tree));
  return checkpoint ? "" : checkpoint.error().message;
}

// A state dict of tensors under "a", "b", ...: two bytes each of storage `key`, from `first` on.
std::string tensors(std::initializer_list<std::pair<std::string, std::int32_t>> places) {
  PickleText pickle;
  pickle.raw("}(");
  char name = 'a';
  for (const auto& [key, first] : places) {
    pickle.text(std::string(1, name++)).global("torch._utils", "_rebuild_tensor_v2");
    pickle.raw("((").text("storage").global("torch", "ByteStorage").text(key).text("cpu");
    pickle.number(8).raw("tQ").number(first).number(2).raw("\x85").number(1).raw("\x85\x89}tR");
  }
  return pickle.raw("u").done();
}

TEST(Catalogue, P26APersistentIdOfAnotherFormIsRefused) {
  PickleText pickle;
  pickle.raw("}").text("a").global("torch._utils", "_rebuild_tensor_v2").raw("((");
  pickle.text("storage").raw("tQ").number(0).raw(")").raw(")").raw("\x89}tRs");
  EXPECT_NE(refusal(torch_tree(archive_around(formats::view_of(pickle.done()))))
                .find("a persistent id that is not (storage, class, key, location, count)"),
            std::string::npos);
}

TEST(Catalogue, P27AStorageWithoutARecordIsNamed) {
  EXPECT_EQ(refusal(torch_tree(archive_around(formats::view_of(tensors({{"9", 0}}))))),
            "\"a\": t/c.pt:0: storage '9' has no record in the archive");
}

TEST(Catalogue, P30TensorsOnOneStorageAreEachShownWhole) {
  const auto checkpoint = formats::describe(
      torch_tree(archive_around(formats::view_of(tensors({{"0", 0}, {"0", 1}})))));
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  EXPECT_EQ((*checkpoint)->catalog().tensors.size(), 2u);
  EXPECT_EQ((*checkpoint)->catalog().notes.back(),
            "1 tensor shares its storage with another: each is shown whole");
}

TEST(Catalogue, Z07CompressionOtherThanDeflateIsUnsupported) {
  ByteVector archive = archive_of(
      {{"a/data.pkl", tensors({}), Method::stored}, {"a/version", "3\n", Method::bzip2}});
  EXPECT_NE(
      refusal(torch_tree(std::move(archive))).find("record 'a/version' uses compression method 12"),
      std::string::npos);
}

TEST(Catalogue, Z11AnArchiveWithoutAVersionIsRefused) {
  EXPECT_EQ(refusal(torch_tree(archive_of({{"a/data.pkl", tensors({}), Method::stored}}))),
            "t/c.pt:0: the archive has no record 'version'");
}

TEST(Catalogue, Z11ByteOrdersAreLittleBigOrLeftOut) {
  const auto with = [](std::vector<ArchiveRecord> more) {
    more.push_back({"a/data.pkl", tensors({}), Method::stored});
    more.push_back({"a/version", "3\n", Method::stored});
    return refusal(torch_tree(archive_of(more)));
  };
  EXPECT_EQ(with({}), "");
  EXPECT_EQ(with({{"a/byteorder", "big", Method::stored}}), "");
  EXPECT_EQ(with({{"a/byteorder", "pdp", Method::stored}}),
            "t/c.pt:0: record 'byteorder' is neither 'little' nor 'big'");
}

TEST(Catalogue, Z12RecordsThatAreNotAlignedAreRead) {
  const auto checkpoint =
      formats::describe(torch_tree(archive_of({{"a/data.pkl", tensors({{"0", 3}}), Method::stored},
                                               {"a/version", "3\n", Method::stored},
                                               {"a/data/0", "abcdefgh", Method::stored}})));
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  const formats::TensorEntry& tensor = (*checkpoint)->catalog().tensors.at(0);
  EXPECT_NE(tensor.chunks.at(0).offset % 64, 3u);
  ByteVector into(2);
  ASSERT_TRUE((*checkpoint)->read(tensor, tensor.chunks[0], 0, into).has_value());
  EXPECT_EQ(formats::text_of(into), "de");
}

std::shared_ptr<MemoryTree> dcp(const std::string& name) {
  return test_support::load_tree(std::filesystem::path(EBB_FIXTURES) / "dcp" / name / "data");
}

TEST(Catalogue, D02APayloadOfAnotherSaveIsNotReadAsThisOnes) {
  const auto tree = dcp("torch2.9.1_w2");
  tree->bytes_of("__1_0.distcp") = dcp("fsdp2_w2_odd_rows_tied")->bytes_of("__1_0.distcp");
  auto same_sizes = std::make_shared<MemoryTree>("t");
  for (const auto& entry : tree->entries()) same_sizes->add(entry.name, tree->bytes_of(entry.name));
  const auto checkpoint = formats::describe(same_sizes);
  bool refused = !checkpoint;
  if (checkpoint)
    for (const formats::TensorEntry& tensor : (*checkpoint)->catalog().tensors)
      for (const formats::Chunk& chunk : tensor.chunks) {
        ByteVector into(formats::volume(chunk.box.extent) * bytes_of(tensor.dtype));
        refused = refused || !(*checkpoint)->read(tensor, chunk, 0, into);
      }
  EXPECT_TRUE(refused);
}

TEST(Catalogue, D10AShardOfALargerOldWorldIsNoted) {
  const auto tree = dcp("torch2.9.1_w2");
  tree->add("__7_0.distcp", std::string_view("left"));
  const auto checkpoint = formats::describe(tree);
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  const auto& notes = (*checkpoint)->catalog().notes;
  EXPECT_NE(std::find(notes.begin(), notes.end(),
                      "__7_0.distcp is referred to by nothing: left by another save"),
            notes.end());
}

TEST(Catalogue, C10TimesOfFilesMeanNothing) {
  // Decoders see names, sizes and bytes: a tree of bytes alone is read like the folder.
  EXPECT_TRUE(formats::describe(dcp("torch2.9.1_w2")).has_value());
}

}  // namespace
