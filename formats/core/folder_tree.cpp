#include "ebb/formats/core/folder_tree.h"

#include <algorithm>
#include <utility>

namespace ebb::formats {
namespace {

class PartOfTree : public SourceTree {
 public:
  // `prefix`: of the entries' names in the whole tree. REQUIRES: entries are sorted.
  PartOfTree(std::shared_ptr<const SourceTree> tree, std::string prefix, std::string root,
             std::vector<Entry> entries)
      : tree_(std::move(tree)),
        prefix_(std::move(prefix)),
        root_(std::move(root)),
        entries_(std::move(entries)) {}
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
  std::string prefix = folder + "/", root = compose("{}/{}", tree->root(), folder);
  std::vector<SourceTree::Entry> entries;
  // Entries are sorted, so those below one folder stand together.
  const auto& all = tree->entries();
  for (auto entry = std::ranges::lower_bound(all, prefix, {}, &SourceTree::Entry::name);
       entry != all.end() && entry->name.starts_with(prefix); ++entry)
    entries.push_back({entry->name.substr(prefix.size()), entry->size});
  return std::make_shared<PartOfTree>(std::move(tree), std::move(prefix), std::move(root),
                                      std::move(entries));
}

std::shared_ptr<const SourceTree> files_of(std::shared_ptr<const SourceTree> tree,
                                           const std::vector<std::string>& files,
                                           std::string root) {
  std::vector<SourceTree::Entry> entries;
  for (const std::string& file : files)
    if (const SourceTree::Entry* entry = tree->find(file)) entries.push_back(*entry);
  std::ranges::sort(entries, {}, &SourceTree::Entry::name);
  return std::make_shared<PartOfTree>(std::move(tree), "", std::move(root), std::move(entries));
}

}  // namespace ebb::formats
