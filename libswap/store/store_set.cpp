#include "ebb/libswap/store/store_set.h"

#include <algorithm>
#include <random>
#include <string>

#include "ebb/formats/native/store_files.h"
#include "ebb/formats/native/survey.h"
#include "ebb/libswap/store/io_source.h"
#include "ebb/libswap/sys/mutex.h"

namespace ebb::libswap {
namespace {

using formats::native::Survey;

Uuid draw_uuid() {
  std::random_device source;  // getrandom; needs no file
  Uuid uuid{};
  for (std::byte& byte : uuid) byte = static_cast<std::byte>(source() & 0xff);
  return uuid;
}

// One that is new must still have its name after a power loss.
Result<> make_durably(IoBackend& backend, const fs::path& directory) {
  EBB_TRY_ASSIGN(const bool there, backend.exists(directory));
  if (there) return backend.make_directory(directory);
  EBB_TRY(backend.make_directory(directory));
  const fs::path tidy = (directory / "").lexically_normal().parent_path();
  return backend.sync_directory(tidy.has_parent_path() ? tidy.parent_path() : ".");
}

// Closes its file.
class OwningSource : public IoSource {
 public:
  using IoSource::IoSource;
  ~OwningSource() override { static_cast<void>(io_.backend().close(file_).has_value()); }
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

// The files of one store's rank folders. Borrows the queue.
Result<std::unique_ptr<const formats::SourceTree>> open_store_tree(IoQueue& io,
                                                                   const fs::path& store) {
  auto tree = std::make_unique<StoreTree>(io, store);
  EBB_TRY(tree->fill());
  return std::unique_ptr<const formats::SourceTree>(std::move(tree));
}

// --- removing a store's files: what the library made, by its names, and nothing else. No link is
// followed or removed; a folder that holds anything else stays, with what it holds.

Result<bool> is_rank_folder(IoBackend& backend, const fs::path& path) {
  if (!formats::native::is_rank_directory(path.filename().string())) return false;
  return backend.is_directory(path);
}

Result<bool> is_rank_file(IoBackend& backend, const fs::path& path) {
  const std::string name = path.filename().string();
  if (name != formats::native::kMetaFile && name != formats::native::kLockFile &&
      !formats::native::is_data_file(name))
    return false;
  return backend.is_file(path);
}

struct StoreFiles {
  std::vector<fs::path> folders, files;  // what the library makes
  bool foreign = false;                  // something else lies there, too
};
Result<StoreFiles> files_of_store(IoBackend& backend, const fs::path& store) {
  StoreFiles found;
  EBB_TRY_ASSIGN(const auto ranks, backend.list(store));
  for (const std::string& rank : ranks) {
    EBB_TRY_ASSIGN(const bool folder, is_rank_folder(backend, store / rank));
    if (folder) found.folders.push_back(store / rank);
    found.foreign = found.foreign || !folder;
    if (!folder) continue;
    EBB_TRY_ASSIGN(const auto files, backend.list(store / rank));
    for (const std::string& file : files) {
      EBB_TRY_ASSIGN(const bool ours, is_rank_file(backend, store / rank / file));
      if (ours) found.files.push_back(store / rank / file);
      found.foreign = found.foreign || !ours;
    }
  }
  return found;
}

// Nothing lies in the store's folder but what the library makes. False for what is no folder.
Result<bool> holds_only_a_store(IoBackend& backend, const fs::path& store) {
  EBB_TRY_ASSIGN(const bool folder, backend.is_directory(store));
  if (!folder) return false;
  EBB_TRY_ASSIGN(const StoreFiles found, files_of_store(backend, store));
  return !found.foreign;
}

Result<> remove_store_files(IoBackend& backend, const fs::path& store) {
  EBB_TRY_ASSIGN(const bool folder, backend.is_directory(store));
  if (!folder) return {};
  EBB_TRY_ASSIGN(StoreFiles found, files_of_store(backend, store));
  for (const fs::path& file : found.files) EBB_TRY(backend.remove(file));
  found.folders.push_back(store);
  for (const fs::path& path : found.folders) {
    // A folder something else lies in, or was put into meanwhile, stays.
    EBB_TRY_ASSIGN(const auto left, backend.list(path));
    if (left.empty()) EBB_TRY(backend.remove(path));
  }
  return {};
}

}  // namespace

struct SwapDirectory::Impl {
  Impl(IoQueue& queue, fs::path directory) : io(queue), path(std::move(directory)) {}
  ~Impl() {
    if (lock_file) static_cast<void>(io.backend().close(*lock_file).has_value());
  }

  Result<> take_lock();
  Result<std::vector<Uuid>> stores() const;
  fs::path path_of(const Uuid& store) const {
    return path / formats::native::store_directory(store);
  }
  Result<Survey> survey(const Uuid& store) const;
  Entry entry_of(const Survey& survey) const;
  Result<> find_current();
  Result<> remove_store(const Uuid& store);
  Result<> finish_removals();

  IoQueue& io;
  const fs::path path;
  std::optional<FileId> lock_file;
  mutable Mutex mutex;
  std::optional<Entry> current EBB_GUARDED_BY(mutex);
  std::optional<Uuid> fresh EBB_GUARDED_BY(mutex);
};

SwapDirectory::SwapDirectory(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SwapDirectory::~SwapDirectory() = default;

Result<std::unique_ptr<SwapDirectory>> SwapDirectory::open(IoQueue& io, const fs::path& directory) {
  auto impl = std::make_unique<Impl>(io, directory);
  EBB_TRY(make_durably(io.backend(), directory));
  EBB_TRY(impl->take_lock());
  EBB_TRY(impl->finish_removals());
  EBB_TRY(impl->find_current());
  return std::unique_ptr<SwapDirectory>(new SwapDirectory(std::move(impl)));
}

Result<> SwapDirectory::Impl::take_lock() {
  EBB_TRY_ASSIGN(lock_file, io.backend().open(path / formats::native::kLockFile,
                                              {.access = Access::read_write,
                                               .creation = Creation::create_or_open}));
  Result<> locked = io.backend().lock(*lock_file);
  if (locked || locked.error().code != Code::busy) return locked;
  return std::move(locked).error().within("swap directory " + path.string());
}

Result<std::vector<Uuid>> SwapDirectory::Impl::stores() const {
  EBB_TRY_ASSIGN(const auto names, io.backend().list(path));
  std::vector<Uuid> uuids;
  for (const std::string& name : names) {
    const auto uuid = formats::native::store_in_directory_name(name);
    if (!uuid) continue;
    EBB_TRY_ASSIGN(const bool file, io.backend().is_file(path / name));
    if (!file) uuids.push_back(*uuid);
  }
  return uuids;
}

Result<Survey> SwapDirectory::Impl::survey(const Uuid& store) const {
  EBB_TRY_ASSIGN(const auto tree, open_store_tree(io, path_of(store)));
  return formats::native::survey_store(*tree, "");
}

SwapDirectory::Entry SwapDirectory::Impl::entry_of(const Survey& survey) const {
  const formats::native::Superblock& s = survey.superblock();
  return {s.store, path_of(s.store), s.world, s.tile_bytes, s.layout_digest};
}

Result<> SwapDirectory::Impl::find_current() {
  EBB_TRY_ASSIGN(const std::vector<Uuid> uuids, stores());
  std::vector<Survey> surveys;
  std::vector<Uuid> empty;  // a folder that create had only just made
  for (const Uuid& uuid : uuids) {
    EBB_TRY_ASSIGN(const auto tree, open_store_tree(io, path_of(uuid)));
    if (tree->entries().empty()) {
      EBB_TRY_ASSIGN(const bool ours, holds_only_a_store(io.backend(), path_of(uuid)));
      if (ours) empty.push_back(uuid);
      continue;
    }
    EBB_TRY_ASSIGN(Survey one, formats::native::survey_store(*tree, ""));
    surveys.push_back(std::move(one));
  }
  const auto used = formats::native::current_stores(surveys);
  const auto superseded = [&](const Uuid& store) {
    return std::ranges::any_of(surveys, [&](const Survey& other) {
      return other.complete() && other.committed() != 0 && other.superblock().parent == store;
    });
  };
  if (used.size() > 1)
    return Error{Code::state,
                 compose("{}: two stores could be resumed, {} and {}", path.string(),
                         surveys[used[0]].where, surveys[used[1]].where),
                 "move one of them away"};
  for (const Uuid& uuid : empty) EBB_TRY(remove_store(uuid));
  const MutexLock lock(mutex);
  for (const Survey& one : surveys) {
    const auto uuid =
        formats::native::store_in_directory_name(fs::path(one.where).filename().string());
    const bool is_current = !used.empty() && &one == &surveys[used[0]];
    if (is_current)
      current = entry_of(one);
    else if (superseded(*uuid) || one.leftover())
      EBB_TRY(remove_store(*uuid));
    else if (auto complete = one.complete(); !complete)
      return complete;
    else
      return Error{Code::incomplete, one.where + ": no generation is valid on all ranks",
                   "ckpt-inspect " + one.where};
  }
  return {};
}

// A store is renamed before its files are removed: half removed, it could look half lost.
Result<> SwapDirectory::Impl::remove_store(const Uuid& store) {
  const fs::path removed = path / formats::native::removed_directory(store);
  EBB_TRY(io.backend().rename_new(path_of(store), removed));
  EBB_TRY(io.backend().sync_directory(path));
  return remove_store_files(io.backend(), removed);
}

Result<> SwapDirectory::Impl::finish_removals() {
  EBB_TRY_ASSIGN(const auto names, io.backend().list(path));
  for (const std::string& name : names)
    if (formats::native::store_in_removed_name(name))
      EBB_TRY(remove_store_files(io.backend(), path / name));
  return {};
}

const fs::path& SwapDirectory::path() const { return impl_->path; }

std::optional<SwapDirectory::Entry> SwapDirectory::current() const {
  const MutexLock lock(impl_->mutex);
  return impl_->current;
}

Result<SwapDirectory::Entry> SwapDirectory::fresh() {
  const MutexLock lock(impl_->mutex);
  if (!impl_->fresh) impl_->fresh = draw_uuid();
  Entry entry;
  entry.uuid = *impl_->fresh;
  entry.path = impl_->path_of(entry.uuid);
  return entry;
}

Result<> SwapDirectory::discard(const Uuid& fresh) {
  const MutexLock lock(impl_->mutex);
  if (impl_->fresh != fresh) return {};
  impl_->fresh.reset();
  EBB_TRY_ASSIGN(const bool there, impl_->io.backend().exists(impl_->path_of(fresh)));
  return there ? impl_->remove_store(fresh) : Result<>();
}

Result<> SwapDirectory::adopt() {
  const MutexLock lock(impl_->mutex);
  if (!impl_->fresh) return {};
  EBB_TRY_ASSIGN(const Survey survey, impl_->survey(*impl_->fresh));
  EBB_TRY(survey.complete());
  if (survey.committed() == 0)
    return Error{Code::state, survey.where + ": no generation was committed yet"};
  const std::optional<Entry> old = impl_->current;
  impl_->current = impl_->entry_of(survey);
  impl_->fresh.reset();
  return old ? impl_->remove_store(old->uuid) : Result<>();
}

}  // namespace ebb::libswap
