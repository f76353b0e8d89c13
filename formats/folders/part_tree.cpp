#include "ebb/formats/folders/part_tree.h"

#include <algorithm>

namespace ebb::formats::folders {
namespace {

class PartTree : public SourceTree {
 public:
  PartTree(std::shared_ptr<const SourceTree> tree, const std::vector<std::string>& files,
           std::string root)
      : tree_(std::move(tree)), root_(std::move(root)) {
    for (const std::string& file : files)
      if (const Entry* entry = tree_->find(file)) entries_.push_back(*entry);
    std::ranges::sort(entries_, {}, &Entry::name);
  }
  std::string_view root() const override { return root_; }
  const std::vector<Entry>& entries() const override { return entries_; }
  Result<std::shared_ptr<const ByteSource>> open(std::string_view name) const override {
    return tree_->open(name);
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
  std::shared_ptr<const SourceTree> tree_;
  std::string root_;
  std::vector<Entry> entries_;
};

}  // namespace

std::shared_ptr<const SourceTree> tree_of(std::shared_ptr<const SourceTree> tree,
                                          const std::vector<std::string>& files, std::string root) {
  return std::make_shared<PartTree>(std::move(tree), files, std::move(root));
}

}  // namespace ebb::formats::folders
