// Items that do not lie as they are wanted, read in parts: every part right, nothing read twice.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <string>

#include "formats/core/units.h"
#include "formats/dcp/dcp.h"
#include "tests/support/emit_in_memory.h"
#include "tests/support/source_tree.h"

namespace {

namespace fs = std::filesystem;
using formats::ByteVector;

// Counts the bytes that are read out of a tree, which keeps all that is decoded.
class CountingTree : public formats::SourceTree {
 public:
  explicit CountingTree(const fs::path& path) : tree_(test_support::load_tree(path)) {}
  std::string_view root() const override { return tree_->root(); }
  const std::vector<Entry>& entries() const override { return tree_->entries(); }
  formats::Result<std::shared_ptr<const formats::ByteSource>> open(
      std::string_view name) const override {
    TRY_ASSIGN(auto source, tree_->open(name));
    return std::shared_ptr<const formats::ByteSource>(
        std::make_shared<Counted>(std::move(source), read_));
  }
  formats::Result<Decoded> decoded(
      const std::string& key, std::uint64_t bytes,
      const std::function<formats::Result<Decoded>()>& make) const override {
    EXPECT_GT(bytes, 0u);
    if (!decoded_.contains(key)) {
      TRY_ASSIGN(decoded_[key], make());
    }
    return decoded_[key];
  }
  std::uint64_t read() const { return read_; }

 private:
  class Counted : public formats::ByteSource {
   public:
    Counted(std::shared_ptr<const formats::ByteSource> source, std::uint64_t& read)
        : source_(std::move(source)), read_(read) {}
    std::uint64_t size() const override { return source_->size(); }
    std::string_view name() const override { return source_->name(); }
    formats::Result<> read(std::uint64_t offset, std::span<std::byte> into) const override {
      read_ += into.size();
      return source_->read(offset, into);
    }

   private:
    std::shared_ptr<const formats::ByteSource> source_;
    std::uint64_t& read_;
  };

  std::shared_ptr<test_support::MemoryTree> tree_;
  mutable std::uint64_t read_ = 0;
  mutable std::map<std::string, Decoded> decoded_;
};

TEST(DcpPayload, PartsOfACompressedItemDecodeItOnce) {
  const fs::path folder = fs::path(EBB_FIXTURES) / "dcp" / "zstd_w2" / "data";
  const auto tree = std::make_shared<CountingTree>(folder);
  const auto checkpoint = formats::describe_dcp(tree);
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  std::size_t in_parts = 0;
  for (const formats::TensorEntry& tensor : (*checkpoint)->catalog().tensors)
    for (const formats::Chunk& chunk : tensor.chunks) {
      ByteVector whole(formats::volume(chunk.box.extent) * bytes_of(tensor.dtype));
      if (whole.size() < 16) continue;
      const std::uint64_t before = tree->read();
      ByteVector parts(whole.size());
      for (std::size_t at = 0; at < parts.size(); at += 7) {
        const auto part = std::span(parts).subspan(at, std::min<std::size_t>(7, parts.size() - at));
        const auto read = (*checkpoint)->read(tensor, chunk, at, part);
        ASSERT_TRUE(read) << read.error().message;
        ++in_parts;
      }
      EXPECT_EQ(tree->read() - before, chunk.length) << *tensor.key;
      ASSERT_TRUE((*checkpoint)->read(tensor, chunk, 0, whole));
      EXPECT_EQ(parts, whole) << *tensor.key;
    }
  EXPECT_GT(in_parts, 100u);
}

TEST(DcpPayload, PartsOfAStridedItemAreThoseOfTheWhole) {
  const fs::path folder = fs::path(EBB_FIXTURES) / "dcp" / "zoo_w1" / "data";
  const auto checkpoint = formats::describe_dcp(test_support::load_tree(folder));
  ASSERT_TRUE(checkpoint) << checkpoint.error().message;
  for (const formats::TensorEntry& tensor : (*checkpoint)->catalog().tensors) {
    const auto whole = test_support::elements_of(**checkpoint, tensor);
    ASSERT_TRUE(whole) << whole.error().message;
    if (tensor.chunks.size() != 1) continue;
    ByteVector parts(whole->size());
    for (std::size_t at = 0; at < parts.size(); at += 11) {
      const auto part = std::span(parts).subspan(at, std::min<std::size_t>(11, parts.size() - at));
      ASSERT_TRUE((*checkpoint)->read(tensor, tensor.chunks[0], at, part));
    }
    EXPECT_EQ(parts, *whole) << *tensor.key;
  }
}

}  // namespace
