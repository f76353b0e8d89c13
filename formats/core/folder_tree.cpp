#include "ebb/formats/core/folder_tree.h"

#include <algorithm>
#include <utility>

namespace ebb::formats {
namespace {

class FolderTree : public SourceTree {
 public:
  FolderTree(std::shared_ptr<const SourceTree> tree, const std::string& folder)
      : tree_(std::move(tree)),
        prefix_(folder + "/"),
        root_(compose("{}/{}", tree_->root(), folder)) {
    // Entries are sorted, so those below one folder stand together.
    const auto& all = tree_->entries();
    for (auto entry = std::ranges::lower_bound(all, prefix_, {}, &Entry::name);
         entry != all.end() && entry->name.starts_with(prefix_); ++entry)
      entries_.push_back({entry->name.substr(prefix_.size()), entry->size});
  }
  std::string_view root() const override { return root_; }
  const std::vector<Entry>& entries() const override { return entries_; }
  Result<std::shared_ptr<const ByteSource>> open(std::string_view name) const override {
    return tree_->open(prefix_ + std::string(name));
  }
  Result<ByteVector> probe(std::string_view program, const ByteSource& file) const override {
    return tree_->probe(program, file);
  }
  Hold hold(std::string_view name, std::uint64_t first, std::uint64_t count) const override {
    return tree_->hold(prefix_ + std::string(name), first, count);
  }
  Result<Decoded> decoded(const std::string& key, std::uint64_t bytes,
                          const std::function<Result<Decoded>()>& make) const override {
    return tree_->decoded(prefix_ + key, bytes, make);
  }
  std::optional<std::uint32_t> seen(const std::string& key, std::uint64_t size, std::uint64_t first,
                                    ByteView bytes) const override {
    return tree_->seen(key, size, first, bytes);  // keys begin with the source's name
  }

 private:
  std::shared_ptr<const SourceTree> tree_;
  std::string prefix_;
  std::string root_;
  std::vector<Entry> entries_;
};

}  // namespace

std::shared_ptr<const SourceTree> folder_of(std::shared_ptr<const SourceTree> tree,
                                            const std::string& folder) {
  if (folder.empty()) return tree;
  return std::make_shared<FolderTree>(std::move(tree), folder);
}

}  // namespace ebb::formats
