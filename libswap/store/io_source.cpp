#include "ebb/libswap/store/io_source.h"

#include "ebb/formats/native/survey.h"

namespace ebb::libswap {
namespace {

// Closes its file.
class OwningSource : public IoSource {
 public:
  OwningSource(IoQueue& io, FileId file, const std::string& name, std::uint64_t size)
      : IoSource(io, file, name, size), io_(io), file_(file) {}
  ~OwningSource() override { static_cast<void>(io_.backend().close(file_).has_value()); }

 private:
  IoQueue& io_;
  FileId file_;
};

class StoreTree : public formats::SourceTree {
 public:
  StoreTree(IoQueue& io, const fs::path& store) : io_(io), store_(store), root_(store.string()) {}

  Result<> fill() {
    EBB_TRY_ASSIGN(const auto folders, io_.backend().list(store_));
    for (const std::string& folder : folders) {
      if (!formats::native::is_rank_directory(folder)) continue;
      EBB_TRY_ASSIGN(const bool no_folder, io_.backend().is_file(store_ / folder));
      if (no_folder) continue;
      EBB_TRY_ASSIGN(const auto files, io_.backend().list(store_ / folder));
      for (const std::string& file : files) {
        const std::string name = folder + "/" + file;
        EBB_TRY_ASSIGN(const bool regular, io_.backend().is_file(store_ / name));
        if (!regular) continue;
        EBB_TRY_ASSIGN(const auto source, open(name));
        entries_.push_back({name, source->size()});
      }
    }
    return {};
  }
  std::string_view root() const override { return root_; }
  const std::vector<Entry>& entries() const override { return entries_; }
  Result<std::shared_ptr<const formats::ByteSource>> open(std::string_view name) const override {
    const fs::path path = store_ / name;
    EBB_TRY_ASSIGN(const FileId file, io_.backend().open(path, {}));
    const auto info = io_.backend().info(file);
    const std::uint64_t size = info ? info->size : 0;
    auto source = std::make_shared<const OwningSource>(io_, file, path.string(), size);
    if (!info) return info.error();
    return std::shared_ptr<const formats::ByteSource>(std::move(source));
  }

 private:
  IoQueue& io_;
  fs::path store_;
  std::string root_;
  std::vector<Entry> entries_;
};

}  // namespace

Result<std::unique_ptr<const formats::SourceTree>> open_store_tree(IoQueue& io,
                                                                   const fs::path& store) {
  auto tree = std::make_unique<StoreTree>(io, store);
  EBB_TRY(tree->fill());
  return std::unique_ptr<const formats::SourceTree>(std::move(tree));
}

}  // namespace ebb::libswap
