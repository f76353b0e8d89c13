#include "ebb/libswap/store/store_set.h"

#include <algorithm>
#include <limits>
#include <random>
#include <string>

#include "ebb/formats/native/store_files.h"
#include "ebb/libswap/store/found_stores.h"
#include "ebb/libswap/store/what_is_lost.h"
#include "ebb/libswap/sys/file_lock.h"
#include "ebb/libswap/sys/home_process.h"
#include "ebb/libswap/sys/mutex.h"

namespace ebb::libswap {
namespace {

using formats::native::Survey;

constexpr std::uint64_t kMostBytes = std::numeric_limits<std::int64_t>::max();

Uuid draw_uuid() {
  std::random_device source;  // getrandom; needs no file
  Uuid uuid{};
  for (std::byte& byte : uuid) byte = static_cast<std::byte>(source() & 0xff);
  return uuid;
}

// Rank 0's, for all.
Result<Uuid> broadcast(Ranks& ranks, const Uuid& mine) {
  EBB_TRY_ASSIGN(const auto said,
                 gather(ranks, ranks.rank() == Rank{0} ? ByteView(mine) : ByteView()));
  Uuid first{};
  std::ranges::copy(said.front(), first.begin());
  return first;
}

// The first of the ranks whose directory is this one, however each of them calls it: all leave a
// file with their number and look whose files they see.
Result<Rank> first_here(IoBackend& backend, const fs::path& directory, const Uuid& run,
                        Ranks& ranks) {
  if (ranks.world() == 1) return Rank{0};
  const fs::path mine = directory / formats::native::joining_file({run, ranks.rank()});
  const auto leave = [&]() -> Result<> {
    EBB_TRY_ASSIGN(const FileId file, backend.open(mine, {.access = Access::read_write,
                                                          .creation = Creation::create_new}));
    return backend.close(file);
  };
  Rank first = ranks.rank();
  const auto find = [&]() -> Result<> {
    EBB_TRY_ASSIGN(const auto names, backend.list(directory));
    for (const std::string& name : names)
      if (const auto seen = formats::native::joining_in_name(name); seen && seen->run == run)
        first = std::min(first, seen->rank);
    return {};
  };
  Result<> done = agree_all(ranks, leave(), "joining its swap directory");
  // The files go only when all have looked.
  if (done) done = agree_all(ranks, find(), "looking who shares its swap directory");
  const Result<> removed = backend.remove(mine);
  EBB_TRY(done);
  EBB_TRY(removed);
  return first;
}

// One that is new must still have its name after a power loss.
Result<> make_durably(IoBackend& backend, const fs::path& directory) {
  EBB_TRY_ASSIGN(const bool there, backend.exists(directory));
  if (there) return backend.make_directory(directory);
  EBB_TRY(backend.make_directory(directory));
  const fs::path tidy = (directory / "").lexically_normal().parent_path();
  return backend.sync_directory(tidy.has_parent_path() ? tidy.parent_path() : ".");
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

Result<std::uint64_t> size_of(IoBackend& backend, const fs::path& path) {
  EBB_TRY_ASSIGN(const FileId file, backend.open(path, {.access = Access::read}));
  const auto info = backend.info(file);
  EBB_TRY(backend.close(file));
  if (!info) return info.error();
  return info->size;
}

// A folder that create had only just made: nothing lies in it. False for what is no folder.
Result<bool> holds_nothing(IoBackend& backend, const fs::path& store) {
  EBB_TRY_ASSIGN(const bool folder, backend.is_directory(store));
  if (!folder) return false;
  EBB_TRY_ASSIGN(const StoreFiles found, files_of_store(backend, store));
  return found.files.empty() && !found.foreign;
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
  Impl(IoQueue& queue, fs::path directory, std::vector<fs::path> others)
      : io(queue), path(std::move(directory)), sources(std::move(others)) {}
  ~Impl() {
    if (lock_file) static_cast<void>(io.backend().close(*lock_file).has_value());
  }

  Result<> enter(Ranks& ranks);
  Result<> check_names();
  Result<> take_lock();
  Result<> clear_leftovers();
  Result<> find_current(Ranks& ranks);
  Result<> remove(const std::vector<Uuid>& stores);
  Result<> remove_store(const Uuid& store);
  Result<> remove_old(const std::optional<Entry>& old, Ranks& ranks);
  // The file system under this directory, asked by its leader; nothing on other ranks.
  struct Disk {
    std::string name;                // the same for the same one, whoever asks
    std::int64_t free = 0, old = 0;  // bytes; of the current store, in this directory
  };
  Result<Disk> ask_disk(const Ranks& ranks) const;
  Result<std::uint64_t> old_bytes() const;
  bool leads(const Ranks& ranks) const { return ranks.rank() == leader; }
  Part part_of(const Ranks& ranks) const { return leads(ranks) ? Part::looks : Part::listens; }
  fs::path path_of(const Uuid& store) const {
    return path / formats::native::store_directory(store);
  }
  Entry entry_of(const Survey& survey) const;
  std::vector<fs::path> folders_of(const Uuid& store) const;
  Error with_what_is_lost(const FoundStores& found, Error error, Ranks& ranks) const;
  Result<> judged() {
    const MutexLock lock(mutex);
    if (!to_be_judged) return {};
    return Error{Code::state,
                 path_of(*to_be_judged).string() + " was given up and may hold a generation",
                 "open the swap directory again"};
  }
  std::optional<Uuid> made() {
    const MutexLock lock(mutex);
    return fresh;
  }

  const HomeProcess process{"swap directory"};
  IoQueue& io;
  const fs::path path;
  const std::vector<fs::path> sources;
  Rank leader{};  // the first of the ranks that share this directory: acts in it for all of them
  std::optional<FileId> lock_file;
  std::string passed_over;  // constant once it is open
  mutable Mutex mutex;
  std::optional<Entry> current EBB_GUARDED_BY(mutex);
  std::optional<Uuid> fresh EBB_GUARDED_BY(mutex);
  std::optional<Uuid> to_be_judged EBB_GUARDED_BY(mutex);
};

SwapDirectory::SwapDirectory(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
SwapDirectory::~SwapDirectory() { impl_->process.let_go(std::move(impl_)); }

Result<std::unique_ptr<SwapDirectory>> SwapDirectory::open(IoQueue& io, const fs::path& directory) {
  Alone alone;
  return open(io, directory, alone);
}

Result<std::unique_ptr<SwapDirectory>> SwapDirectory::open(IoQueue& io, const fs::path& directory,
                                                           Ranks& ranks,
                                                           std::vector<fs::path> sources) {
  auto impl = std::make_unique<Impl>(io, directory, std::move(sources));
  EBB_TRY(impl->enter(ranks));
  return std::unique_ptr<SwapDirectory>(new SwapDirectory(std::move(impl)));
}

Result<> SwapDirectory::Impl::check_names() {
  EBB_TRY(check_no_store(io.backend(), path));
  for (const fs::path& source : sources) EBB_TRY(check_no_store(io.backend(), source));
  return {};
}

Result<> SwapDirectory::Impl::enter(Ranks& ranks) {
  EBB_TRY(agree_all(ranks, check_names(), "looking at its swap directory"));
  EBB_TRY(agree_all(ranks, make_durably(io.backend(), path), "making its swap directory"));
  EBB_TRY_ASSIGN(const Uuid run, broadcast(ranks, draw_uuid()));
  EBB_TRY_ASSIGN(leader, first_here(io.backend(), path, run, ranks));
  EBB_TRY(agree_all(ranks, leads(ranks) ? take_lock() : Result<>(), "locking its swap directory"));
  const Result<> cleared = leads(ranks) ? clear_leftovers() : Result<>();
  EBB_TRY(agree_all(ranks, cleared, "clearing its swap directory"));
  return find_current(ranks);
}

Result<> SwapDirectory::Impl::take_lock() {
  EBB_TRY_ASSIGN(lock_file, io.backend().open(path / formats::native::kLockFile,
                                              {.access = Access::read_write,
                                               .creation = Creation::create_or_open}));
  Result<> locked = io.backend().lock(*lock_file);
  if (locked || locked.error().code != Code::busy) return locked;
  return std::move(locked).error().within("swap directory " + path.string());
}

SwapDirectory::Entry SwapDirectory::Impl::entry_of(const Survey& survey) const {
  const formats::native::Superblock& s = survey.superblock();
  return {s.store, path_of(s.store), s.world, s.tile_bytes, s.layout_digest};
}

std::vector<fs::path> SwapDirectory::Impl::folders_of(const Uuid& store) const {
  std::vector<fs::path> folders = {path_of(store)};
  for (const fs::path& source : sources)
    folders.push_back(source / formats::native::store_directory(store));
  return folders;
}

Result<> SwapDirectory::Impl::find_current(Ranks& ranks) {
  EBB_TRY_ASSIGN(const FoundStores found,
                 find_stores(io, {path, sources, std::nullopt}, part_of(ranks), ranks));
  const auto chosen = choose(found);
  if (!chosen) return with_what_is_lost(found, chosen.error(), ranks);
  for (const std::string& other : found.misnamed) passed_over += "; passed over: " + other;
  const Choice& choice = *chosen;
  const Result<> removed = leads(ranks) ? remove(choice.remove) : Result<>();
  EBB_TRY(agree_all(ranks, removed, "removing what is left of old stores"));
  const MutexLock lock(mutex);
  if (choice.current) current = entry_of(found.surveys[*choice.current]);
  return {};
}

// [C] Where a rank's folder is missing everywhere, what went with it.
Error SwapDirectory::Impl::with_what_is_lost(const FoundStores& found, Error error,
                                             Ranks& ranks) const {
  if (error.code != Code::incomplete) return error;
  for (std::size_t i = 0; i < found.names.size(); ++i) {
    const auto& folders = found.surveys[i].ranks;
    if (std::ranges::none_of(folders, [](const auto& folder) { return folder.missing; })) continue;
    const auto world = static_cast<std::uint32_t>(folders.size());
    const auto lost = what_is_lost(io, folders_of(found.names[i]), world, ranks);
    if (!lost) return lost.error();
    if (!lost->empty()) error.message += "; lost with it: " + *lost;
    break;
  }
  return error;
}

// Those that are named, and folders with nothing in them.
Result<> SwapDirectory::Impl::remove(const std::vector<Uuid>& stores) {
  EBB_TRY_ASSIGN(const auto names, io.backend().list(path));
  for (const std::string& name : names) {
    const auto uuid = formats::native::store_in_directory_name(name);
    if (!uuid) continue;
    EBB_TRY_ASSIGN(const bool nothing, holds_nothing(io.backend(), path / name));
    if (nothing || std::ranges::find(stores, *uuid) != stores.end()) EBB_TRY(remove_store(*uuid));
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

Result<> SwapDirectory::Impl::remove_old(const std::optional<Entry>& old, Ranks& ranks) {
  const Result<> removed = old && leads(ranks) ? remove({old->uuid}) : Result<>();
  return agree_all(ranks, removed, "removing the previous store");
}

// What runs that were killed left in the middle of removing a store or of opening the directory.
Result<> SwapDirectory::Impl::clear_leftovers() {
  EBB_TRY_ASSIGN(const auto names, io.backend().list(path));
  for (const std::string& name : names) {
    if (formats::native::store_in_removed_name(name))
      EBB_TRY(remove_store_files(io.backend(), path / name));
    if (!formats::native::joining_in_name(name)) continue;
    EBB_TRY_ASSIGN(const bool file, io.backend().is_file(path / name));
    if (file) EBB_TRY(io.backend().remove(path / name));
  }
  return {};
}

Result<SwapDirectory::Impl::Disk> SwapDirectory::Impl::ask_disk(const Ranks& ranks) const {
  if (!leads(ranks)) return Disk{};
  EBB_TRY_ASSIGN(const FileInfo info, io.backend().info(*lock_file));
  EBB_TRY_ASSIGN(const std::uint64_t free, io.backend().free_bytes(path));
  EBB_TRY_ASSIGN(const std::uint64_t old, old_bytes());
  const auto number = [](std::uint64_t bytes) {
    return static_cast<std::int64_t>(std::min(bytes, kMostBytes));
  };
  return Disk{compose("{} {}", boot_id(), info.device), number(free), number(old)};
}

Result<std::uint64_t> SwapDirectory::Impl::old_bytes() const {
  std::optional<Entry> old;
  {
    const MutexLock lock(mutex);
    old = current;
  }
  if (!old) return std::uint64_t{0};
  EBB_TRY_ASSIGN(const bool here, io.backend().is_directory(path_of(old->uuid)));
  if (!here) return std::uint64_t{0};
  EBB_TRY_ASSIGN(const StoreFiles found, files_of_store(io.backend(), path_of(old->uuid)));
  std::uint64_t bytes = 0;
  for (const fs::path& file : found.files) {
    EBB_TRY_ASSIGN(const std::uint64_t size, size_of(io.backend(), file));
    bytes += size;
  }
  return bytes;
}

const fs::path& SwapDirectory::path() const { return impl_->path; }

std::string SwapDirectory::passed_over() const { return impl_->passed_over; }

std::optional<SwapDirectory::Entry> SwapDirectory::current() const {
  const MutexLock lock(impl_->mutex);
  return impl_->current;
}

std::vector<fs::path> SwapDirectory::folders_of(const Uuid& store) const {
  return impl_->folders_of(store);
}

Result<SwapDirectory::Entry> SwapDirectory::fresh(Ranks& ranks) {
  EBB_TRY(agree_all(ranks, impl_->judged(), "naming a store"));
  EBB_TRY_ASSIGN(const Uuid uuid, broadcast(ranks, impl_->made().value_or(draw_uuid())));
  const MutexLock lock(impl_->mutex);
  impl_->fresh = uuid;
  Entry entry;
  entry.uuid = uuid;
  entry.path = impl_->path_of(uuid);
  return entry;
}

// All are asked before any rank reserves: a later look might see what a rank has taken since.
Result<> SwapDirectory::check_space(Ranks& ranks, std::uint64_t mine) const {
  const auto asked = impl_->ask_disk(ranks);
  EBB_TRY(agree_all(ranks, asked ? Result<>() : asked.error(), "asking for the free space"));
  EBB_TRY_ASSIGN(const auto disks, gather(ranks, formats::view_of(asked->name)));
  // Both by the rank that leads in the directory.
  const std::size_t leader = index_of(impl_->leader);
  std::vector<std::int64_t> needed(ranks.world(), 0), free = needed, old = needed;
  needed[leader] = static_cast<std::int64_t>(mine);
  free[index_of(ranks.rank())] = asked->free;
  old[index_of(ranks.rank())] = asked->old;
  for (auto* const numbers : {&needed, &free, &old}) EBB_TRY(ranks.sum(*numbers));
  std::int64_t together = 0, superseded = 0;
  std::size_t others = 0;
  for (std::size_t rank = 0; rank < disks.size(); ++rank) {
    if (disks[rank] != disks[leader]) continue;
    together += needed[rank];
    superseded += old[rank];
    others += rank == leader ? 0 : 1;
  }
  Result<> fits;
  if (together > free[leader])
    fits = Error{Code::no_space,
                 compose("{}: the store needs {} bytes{}, {} are free{}", path().string(), together,
                         others == 0 ? std::string()
                                     : compose(" here and in {} more on this file system", others),
                         free[leader],
                         superseded == 0
                             ? std::string()
                             : compose(", {} are the store's that it is to replace", superseded)),
                 "name another directory, or use fewer slots"};
  return agree_all(ranks, fits, "asking for the free space");
}

Result<> SwapDirectory::discard(Ranks& ranks, const Uuid& fresh, const Result<>& holds_none) {
  // Nobody goes on making what is removed.
  const Result<> all_hold_none = agree_all(ranks, holds_none, "giving up its store");
  {
    const MutexLock lock(impl_->mutex);
    if (impl_->fresh == fresh) impl_->fresh.reset();
    if (!all_hold_none) impl_->to_be_judged = fresh;
  }
  EBB_TRY(all_hold_none);
  if (!impl_->leads(ranks)) return {};
  EBB_TRY_ASSIGN(const bool there, impl_->io.backend().exists(impl_->path_of(fresh)));
  return there ? impl_->remove_store(fresh) : Result<>();
}

Result<> SwapDirectory::adopt(Ranks& ranks) {
  const auto fresh = impl_->made();
  if (!fresh) return {};
  const std::optional<Entry> old = current();
  EBB_TRY_ASSIGN(const FoundStores found,
                 find_stores(impl_->io, {path(), {}, fresh}, impl_->part_of(ranks), ranks));
  if (found.surveys.empty())
    return Error{Code::state, impl_->path_of(*fresh).string() + ": no such store"};
  const Survey& survey = found.surveys.front();
  EBB_TRY(survey.complete());
  if (survey.committed() == 0)
    return Error{Code::state, survey.where + ": no generation was committed yet"};
  {
    const MutexLock lock(impl_->mutex);
    impl_->current = impl_->entry_of(survey);
    impl_->fresh.reset();
  }
  return impl_->remove_old(old, ranks);
}

Result<> SwapDirectory::drop(Ranks& ranks) {
  const Result<> removed = impl_->remove_old(current(), ranks);
  // Ranks that are threads share this: all have looked by now.
  const MutexLock lock(impl_->mutex);
  impl_->current.reset();
  return removed;
}

}  // namespace ebb::libswap
