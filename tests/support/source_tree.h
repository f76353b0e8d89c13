// Checkpoints for tests: a SourceTree in memory, filled by hand or from a folder on disk.
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ebb/formats/core/byte_source.h"
#include "ebb/formats/core/crc32c.h"
#include "ebb/formats/core/seen_parts.h"

namespace ebb::test_support {

// Remembers what was read, as trees of files do. For one thread at a time.
class RememberingTree : public formats::SourceTree {
 public:
  std::optional<std::uint32_t> seen(const std::string& key, std::uint64_t size, std::uint64_t first,
                                    ByteView bytes) const override {
    return seen_.add(key, size, first, bytes, formats::crc32_zip(0, bytes));
  }

 private:
  mutable formats::SeenParts seen_;
};

class MemoryTree : public RememberingTree {
 public:
  explicit MemoryTree(std::string root) : root_(std::move(root)) {}

  void add(std::string name, ByteVector bytes);
  void add(std::string name, std::string_view text);
  ByteVector& bytes_of(std::string_view name);  // REQUIRES: it was added

  std::string_view root() const override { return root_; }
  const std::vector<Entry>& entries() const override { return entries_; }
  Result<std::shared_ptr<const formats::ByteSource>> open(std::string_view name) const override;

 private:
  std::string root_;
  std::vector<Entry> entries_;
  std::vector<std::pair<std::string, ByteVector>> files_;
};

// Passes everything on to another tree: for those that watch or change some of it.
class ForwardingTree : public formats::SourceTree {
 public:
  explicit ForwardingTree(std::shared_ptr<const formats::SourceTree> tree)
      : tree_(std::move(tree)) {}

  std::string_view root() const override { return tree_->root(); }
  const std::vector<Entry>& entries() const override { return tree_->entries(); }
  Result<std::shared_ptr<const formats::ByteSource>> open(std::string_view name) const override {
    return tree_->open(name);
  }
  Result<ByteVector> probe(std::string_view program,
                           const formats::ByteSource& file) const override {
    return tree_->probe(program, file);
  }
  Result<Decoded> decoded(const std::string& key, std::uint64_t bytes,
                          const std::function<Result<Decoded>()>& make) const override {
    return tree_->decoded(key, bytes, make);
  }
  std::optional<std::uint32_t> seen(const std::string& key, std::uint64_t size, std::uint64_t first,
                                    ByteView bytes) const override {
    return tree_->seen(key, size, first, bytes);
  }

 private:
  std::shared_ptr<const formats::SourceTree> tree_;
};

// Every regular file below `path` (or `path` itself). REQUIRES: it can be read.
std::shared_ptr<MemoryTree> load_tree(const std::filesystem::path& path);

}  // namespace ebb::test_support
