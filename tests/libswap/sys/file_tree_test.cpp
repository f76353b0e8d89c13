#include "ebb/libswap/tree/file_tree.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>

#include "ebb/formats/core/byte_source.h"
#include "ebb/libswap/sys/aligned_buffer.h"
#include "ebb/libswap/sys/unique.h"
#include "tests/libswap/sys/test_files.h"

namespace ebb::libswap {
namespace {

void write_file(const fs::path& path, std::string_view text) {
  std::ofstream(path, std::ios::binary) << text;
}

std::string read_all(const formats::SourceTree& tree, std::string_view name) {
  const auto source = value_of(tree.open(name));
  std::string text(source->size(), '?');
  EXPECT_TRUE(
      succeeded(source->read(0, std::as_writable_bytes(std::span(text.data(), text.size())))));
  return text;
}

class Tree : public testing::Test {
 protected:
  TemporaryDirectory directory_;
};

TEST_F(Tree, ListsFilesBelowTheRootInBytewiseOrder) {
  fs::create_directories(directory_ / "b/deep");
  fs::create_directories(directory_ / "empty");
  write_file(directory_ / "b/deep/x", "12");
  write_file(directory_ / "b.txt", "1");
  write_file(directory_ / "Z", "");
  const auto tree = value_of(open_tree(directory_.path()));
  EXPECT_EQ(tree->root(), directory_.path().string());
  ASSERT_EQ(tree->entries().size(), 3u);
  EXPECT_EQ(tree->entries()[0].name, "Z");
  EXPECT_EQ(tree->entries()[1].name, "b.txt");
  EXPECT_EQ(tree->entries()[2].name, "b/deep/x");
  EXPECT_EQ(tree->entries()[2].size, 2u);
  EXPECT_EQ(read_all(*tree, "b/deep/x"), "12");
  EXPECT_EQ(value_of(tree->open("b.txt"))->name(), (directory_ / "b.txt").string());
}

// models--org--name/snapshots/<commit>/ holds links to models--org--name/blobs/<sha256>.
TEST_F(Tree, OfASnapshotInHuggingFacesCacheHasTheFilesBehindItsLinks) {
  const fs::path model = directory_ / "models--org--name";
  const fs::path snapshot = model / "snapshots/0a1b";
  fs::create_directories(snapshot / "onnx");
  fs::create_directories(model / "blobs");
  write_file(model / "blobs/f00d", "weights");
  write_file(model / "refs", "secret");
  fs::create_symlink("../../blobs/f00d", snapshot / "model.safetensors");
  fs::create_symlink("../../../blobs/f00d", snapshot / "onnx/model.bin");
  const auto tree = value_of(open_tree(snapshot));
  ASSERT_EQ(tree->entries().size(), 2u);
  EXPECT_EQ(tree->entries()[0].size, 7u);
  EXPECT_EQ(read_all(*tree, "model.safetensors"), "weights");
  EXPECT_EQ(read_all(*tree, "onnx/model.bin"), "weights");
  EXPECT_EQ(value_of(tree->open("model.safetensors"))->name(),
            (snapshot / "model.safetensors").string());
  EXPECT_EQ(read_all(*value_of(open_tree(snapshot / "onnx")), "model.bin"), "weights");
  // Whatever else of the cache a link leads to is outside, and so is another model.
  fs::create_symlink("../../refs", snapshot / "refs");
  EXPECT_EQ(open_tree(snapshot).error().code, Code::unsupported);
  fs::remove(snapshot / "refs");
  fs::create_directories(directory_ / "models--org--other/blobs");
  write_file(directory_ / "models--org--other/blobs/f00d", "another's");
  fs::create_symlink("../../../models--org--other/blobs/f00d", snapshot / "other");
  EXPECT_EQ(open_tree(snapshot).error().code, Code::unsupported);
}

TEST_F(Tree, OfOneFileHasOneEntryEvenBehindALink) {
  write_file(directory_ / "blob", "abc");
  fs::create_directory(directory_ / "links");
  fs::create_symlink("../blob", directory_ / "links/model.safetensors");
  const auto tree = value_of(open_tree(directory_ / "links/model.safetensors"));
  ASSERT_EQ(tree->entries().size(), 1u);
  EXPECT_EQ(tree->entries()[0].name, "model.safetensors");
  EXPECT_EQ(read_all(*tree, "model.safetensors"), "abc");
  EXPECT_EQ(value_of(tree->open("model.safetensors"))->name(),
            (directory_ / "links/model.safetensors").string());
}

TEST_F(Tree, AReadBeyondTheEndNamesFileAndOffset) {
  write_file(directory_ / "f", "0123456789");
  const auto source = value_of(value_of(open_tree(directory_.path()))->open("f"));
  std::vector<std::byte> bytes(4);
  const Result<> result = source->read(8, bytes);
  ASSERT_FALSE(result);
  EXPECT_EQ(result.error().message,
            "cannot read 4 bytes at " + (directory_ / "f").string() + ":8: the file ends at 10");
  EXPECT_FALSE(source->read(~std::uint64_t{0} - 1, bytes));
}

// Drops the file from the page cache, all of it or what lies behind `from`.
void forget_cached(const fs::path& path, off_t from) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  ASSERT_EQ(::fsync(file.get()), 0);
  ASSERT_EQ(::posix_fadvise(file.get(), from, 0, POSIX_FADV_DONTNEED), 0);
}

TEST_F(Tree, LargeReadsGiveTheSameBytesWhateverIsInMemory) {
  std::string text(9'000'001, 0);
  for (std::size_t i = 0; i < text.size(); ++i) text[i] = static_cast<char>(i * 2654435761u >> 13);
  write_file(directory_ / "f", text);
  const auto source = value_of(value_of(open_tree(directory_.path()))->open("f"));
  for (const off_t cached : {off_t{0}, off_t{1} << 20, off_t{9} << 20})
    for (const std::size_t first : {0u, 1u, 4096u, 70'001u, 4'500'003u})
      for (const std::size_t size : {131'072u, 200'003u, 4'194'304u, 4'499'998u, 8'900'000u}) {
        if (first + size > text.size()) continue;
        AlignedBuffer memory = value_of(AlignedBuffer::allocate(size + 4096));
        // Where blocks of the file fall on borders of memory, and where not.
        for (const std::size_t at : {first % 4096, std::size_t{17}}) {
          forget_cached(directory_ / "f", cached);
          const auto read = memory.bytes().subspan(at, size);
          ASSERT_TRUE(succeeded(source->read(first, read)));
          ASSERT_TRUE(std::ranges::equal(read, formats::view_of(text).subspan(first, size)))
              << first << ", " << size << ", " << cached << ", " << at;
        }
      }
  std::vector<std::byte> bytes(200'000);
  EXPECT_FALSE(source->read(text.size() - 199'999, bytes));
  fs::resize_file(directory_ / "f", 1'000'000);
  const Result<> cut = source->read(900'000, bytes);
  ASSERT_FALSE(cut);
  EXPECT_NE(cut.error().message.find("was cut at 1000000 meanwhile"), std::string::npos)
      << cut.error().message;
}

TEST_F(Tree, AFileCutMeanwhileIsAnError) {
  write_file(directory_ / "f", "0123456789");
  const auto source = value_of(value_of(open_tree(directory_.path()))->open("f"));
  fs::resize_file(directory_ / "f", 5);
  std::vector<std::byte> bytes(10);
  const Result<> result = source->read(0, bytes);
  ASSERT_FALSE(result);
  EXPECT_NE(result.error().message.find("was cut at 5 meanwhile"), std::string::npos);
}

TEST_F(Tree, NamesThatAreNotListedCannotBeOpened) {
  write_file(directory_ / "f", "");
  const auto tree = value_of(open_tree(directory_.path()));
  for (const char* name : {"g", "../f", "/etc/passwd", "", "./f"}) {
    EXPECT_FALSE(tree->open(name)) << name;
  }
}

TEST_F(Tree, LinksInsideAreFollowedAndLinksOutsideRefused) {
  const TemporaryDirectory outside;
  write_file(outside / "secret", "s");
  write_file(directory_ / "f", "inside");
  fs::create_symlink("f", directory_ / "link");
  EXPECT_EQ(read_all(*value_of(open_tree(directory_.path())), "link"), "inside");
  fs::create_symlink(outside / "secret", directory_ / "leak");
  const auto refused = open_tree(directory_.path());
  ASSERT_FALSE(refused);
  EXPECT_NE(refused.error().message.find("leads outside"), std::string::npos);
}

// Trainers keep a link beside their saves: latest-rank0.pt, LATEST.
TEST_F(Tree, ALinkToAFolderInsideIsNoSecondFolder) {
  fs::create_directories(directory_ / "step-2");
  write_file(directory_ / "step-2/f", "x");
  fs::create_symlink("step-2", directory_ / "last");
  fs::create_symlink("step-1", directory_ / "LATEST");
  const auto tree = value_of(open_tree(directory_.path()));
  ASSERT_EQ(tree->entries().size(), 1u);
  EXPECT_EQ(tree->entries()[0].name, "step-2/f");
  EXPECT_EQ(read_all(*value_of(open_tree(directory_ / "last")), "f"), "x");
  fs::create_symlink("f-that-is-gone", directory_ / "shard-2");
  EXPECT_FALSE(open_tree(directory_.path())) << "a part of a save is missing";
}

TEST_F(Tree, ALinkPutInAfterTheListingIsNotFollowed) {
  const TemporaryDirectory outside;
  write_file(outside / "secret", "s");
  write_file(directory_ / "f", "x");
  const auto tree = value_of(open_tree(directory_.path()));
  fs::remove(directory_ / "f");
  fs::create_symlink(outside / "secret", directory_ / "f");
  EXPECT_FALSE(tree->open("f"));
}

TEST_F(Tree, SpecialFilesAreRefusedWithoutWaitingForThem) {
  ASSERT_EQ(::mkfifo((directory_ / "pipe").c_str(), 0600), 0);
  const auto refused = open_tree(directory_.path());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::unsupported);
  EXPECT_FALSE(open_tree(directory_ / "pipe"));
  EXPECT_FALSE(open_tree(directory_ / "nothing"));
}

TEST_F(Tree, DirectoriesAreAtMostEightDeep) {
  fs::create_directories(directory_ / "1/2/3/4/5/6/7");
  write_file(directory_ / "1/2/3/4/5/6/7/f", "");
  EXPECT_TRUE(succeeded(open_tree(directory_.path())));
  fs::create_directories(directory_ / "1/2/3/4/5/6/7/8");
  const auto refused = open_tree(directory_.path());
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::limit);
}

TEST_F(Tree, MoreFilesThanMayBeOpenAreReadInTurn) {
  constexpr int kFiles = 100;
  for (int i = 0; i < kFiles; ++i) write_file(directory_ / std::to_string(i), std::to_string(i));
  struct rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  struct rlimit few = before;
  few.rlim_cur = 40;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  const auto tree = value_of(open_tree(directory_.path()));
  std::vector<std::shared_ptr<const formats::ByteSource>> sources;
  for (int i = 0; i < kFiles; ++i) sources.push_back(value_of(tree->open(std::to_string(i))));
  for (int round = 0; round < 2; ++round) {
    for (int i = 0; i < kFiles; ++i) {
      const std::string expected = std::to_string(i);
      std::string text(expected.size(), '?');
      EXPECT_TRUE(succeeded(sources[static_cast<std::size_t>(i)]->read(
          0, std::as_writable_bytes(std::span(text.data(), text.size())))));
      EXPECT_EQ(text, expected);
    }
  }
  EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
}

TEST_F(Tree, AFileReplacedWhileItsDescriptorWasClosedIsAnError) {
  write_file(directory_ / "f", "old");
  struct rlimit before{};
  ASSERT_EQ(::getrlimit(RLIMIT_NOFILE, &before), 0);
  for (int i = 0; i < 20; ++i) write_file(directory_ / std::to_string(i), "x");
  struct rlimit few = before;
  few.rlim_cur = 32;
  ASSERT_EQ(::setrlimit(RLIMIT_NOFILE, &few), 0);
  const auto tree = value_of(open_tree(directory_.path()));
  const auto source = value_of(tree->open("f"));
  write_file(directory_ / "new", "new");
  fs::rename(directory_ / "new", directory_ / "f");
  std::vector<std::shared_ptr<const formats::ByteSource>> others;
  for (int i = 0; i < 20; ++i) others.push_back(value_of(tree->open(std::to_string(i))));
  std::vector<std::byte> bytes(3);
  const Result<> result = source->read(0, bytes);
  EXPECT_EQ(::setrlimit(RLIMIT_NOFILE, &before), 0);
  ASSERT_FALSE(result);
  EXPECT_NE(result.error().message.find("was replaced"), std::string::npos);
}

}  // namespace
}  // namespace ebb::libswap
