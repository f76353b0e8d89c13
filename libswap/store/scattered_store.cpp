#include "ebb/libswap/store/scattered_store.h"

#include <algorithm>
#include <map>

#include "ebb/libswap/tree/file_tree.h"

namespace ebb::libswap {

using formats::ByteSource;
using formats::SourceTree;

// A file that only others reach.
class ScatteredStore::RemoteSource : public ByteSource {
 public:
  RemoteSource(const ScatteredStore& store, std::uint32_t number)
      : store_(store),
        number_(number),
        name_(compose("rank {}'s {}/{}", index_of(file().holder), store.root_, file().name)) {}
  std::uint64_t size() const override { return file().size; }
  std::string_view name() const override { return name_; }

 private:
  const File& file() const { return store_.files_[number_]; }
  Result<> read(std::uint64_t offset, std::span<std::byte> into) const override {
    EBB_CHECK(store_.there_ != nullptr);
    return (*store_.there_)(file().holder, number_, offset, into);
  }

  const ScatteredStore& store_;
  const std::uint32_t number_;
  const std::string name_;
};

class ScatteredStore::Tree : public SourceTree {
 public:
  explicit Tree(const ScatteredStore& store) : store_(store) {
    for (const File& file : store.files_) entries_.push_back({file.name, file.size});
  }
  std::string_view root() const override { return store_.root_; }
  const std::vector<Entry>& entries() const override { return entries_; }
  Result<std::shared_ptr<const ByteSource>> open(std::string_view name) const override {
    if (const SourceTree* here = store_.tree_with(name)) return here->open(name);
    for (std::uint32_t i = 0; i < store_.files_.size(); ++i)
      if (store_.files_[i].name == name)
        return std::shared_ptr<const ByteSource>(std::make_shared<const RemoteSource>(store_, i));
    return Error{Code::incomplete, compose("{}/{}: no rank reaches it", store_.root_, name)};
  }
  Hold hold(std::string_view name, std::uint64_t first, std::uint64_t count) const override {
    const SourceTree* here = store_.tree_with(name);
    return here != nullptr ? here->hold(name, first, count) : nullptr;
  }

 private:
  const ScatteredStore& store_;
  std::vector<Entry> entries_;
};

const SourceTree* ScatteredStore::tree_with(std::string_view name) const {
  for (const auto& tree : here_)
    if (tree->find(name) != nullptr) return tree.get();
  return nullptr;
}

Result<> ScatteredStore::read_here(std::uint32_t file, std::uint64_t offset,
                                   std::span<std::byte> into) const {
  const SourceTree* here = tree_with(files_[file].name);
  EBB_CHECK(here != nullptr);
  EBB_TRY_ASSIGN(const auto source, here->open(files_[file].name));
  return source->read(offset, into);
}

Result<std::unique_ptr<ScatteredStore>> ScatteredStore::open(Ranks& ranks, IoBackend& backend,
                                                             const std::vector<fs::path>& folders) {
  Trees here;
  const auto look = [&]() -> Result<> {
    for (const fs::path& folder : folders) {
      EBB_TRY_ASSIGN(const bool reached, backend.is_directory(folder));
      if (!reached) continue;
      EBB_TRY_ASSIGN(auto tree, open_tree(folder));
      here.push_back(std::move(tree));
    }
    return {};
  };
  EBB_TRY(agree_all(ranks, look(), "looking for the store to begin from"));
  std::unique_ptr<ScatteredStore> store(
      new ScatteredStore(folders.front().string(), std::move(here)));
  EBB_TRY(store->find_files(ranks));
  return store;
}

// A rank may come to a folder in two ways, and says its files once.
Result<> ScatteredStore::find_files(Ranks& ranks) {
  std::map<std::string_view, std::uint64_t> mine;
  for (const auto& tree : here_)
    for (const SourceTree::Entry& entry : tree->entries()) mine.emplace(entry.name, entry.size);
  ByteVector says;
  for (const auto& [name, size] : mine) {
    formats::append_le(says, size);
    formats::append_le(says, std::uint64_t{name.size()});
    formats::append_text(says, name);
  }
  EBB_TRY_ASSIGN(const auto said, gather(ranks, says));
  std::map<std::string, File, std::less<>> all;
  for (std::uint32_t rank = 0; rank < said.size(); ++rank) {
    formats::ByteReader in(said[rank]);
    while (const auto size = in.number<std::uint64_t>()) {
      const auto name = in.take(in.number<std::uint64_t>().value_or(0));
      EBB_CHECK(name.has_value());
      const std::string text(formats::text_of(*name));
      ++all.try_emplace(text, File{text, *size, Rank{rank}}).first->second.reached_by;
    }
  }
  for (auto& [name, file] : all) files_.push_back(std::move(file));
  return {};
}

std::shared_ptr<const SourceTree> ScatteredStore::tree() const {
  return std::make_shared<const Tree>(*this);
}

Result<> ScatteredStore::run(Ranks& ranks, std::string_view doing,
                             const std::function<Result<>()>& work) {
  const auto apart = std::ranges::find_if(
      files_, [&](const File& file) { return file.reached_by < ranks.world(); });
  if (apart == files_.end()) return ranks.together(doing, work);
  const FilesApart files{
      .read = [this](std::uint32_t file, std::uint64_t offset,
                     std::span<std::byte> into) { return read_here(file, offset, into); },
      .who = compose("{}/{}: {} of {} ranks reach{} it", root_, apart->name, apart->reached_by,
                     ranks.world(), apart->reached_by == 1 ? "es" : "")};
  return ranks.together_reading(doing, files, [&](const ReadThere& there) {
    there_ = &there;
    Result<> done = work();
    there_ = nullptr;
    return done;
  });
}

}  // namespace ebb::libswap
