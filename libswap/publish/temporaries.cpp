#include "ebb/libswap/publish/temporaries.h"

#include <set>
#include <utility>

#include "ebb/libswap/sys/process.h"

namespace ebb::libswap {

namespace {

constexpr std::string_view kNew = ".ebb-new-";
constexpr std::string_view kOld = ".ebb-old-";
constexpr std::string_view kLock = ".ebb-lock-";
constexpr std::string_view kJournal = ".ebb-journal-";
constexpr std::size_t kIdDigits = 16;
constexpr int kAttempts = 16;
constexpr int kMaxDepth = 64;

std::string name_of(std::string_view destination, std::string_view kind, std::string_view id) {
  return compose(".{}{}{}", destination, kind, id);
}

struct Parsed {
  std::string destination;
  std::string id;
};
std::optional<Parsed> parsed(std::string_view name, std::string_view kind) {
  if (name.size() <= 1 + kind.size() + kIdDigits || name.front() != '.') return std::nullopt;
  const std::string_view id = name.substr(name.size() - kIdDigits);
  if (id.find_first_not_of("0123456789abcdef") != std::string_view::npos) return std::nullopt;
  const std::string_view head = name.substr(1, name.size() - kIdDigits - 1);
  if (!head.ends_with(kind)) return std::nullopt;
  return Parsed{std::string(head.substr(0, head.size() - kind.size())), std::string(id)};
}

Result<> remove_below(IoBackend& files, const fs::path& path, int depth) {
  // A file or an empty directory goes at once; what does not can only be a directory with entries.
  Result<> removed = files.remove(path);
  if (removed) return {};
  const auto entries = files.list(path);
  if (!entries || entries->empty() || depth == kMaxDepth) return removed;
  for (const std::string& name : *entries) EBB_TRY(remove_below(files, path / name, depth + 1));
  return files.remove(path);
}

// One attempt's leftovers, with its lock held. False when it can be resumed, and stays.
Result<bool> clear(IoBackend& files, const fs::path& parent, const Parsed& attempt,
                   StaleTemporaries& report) {
  const std::string fresh = name_of(attempt.destination, kNew, attempt.id);
  const std::string old = name_of(attempt.destination, kOld, attempt.id);
  const fs::path destination = parent / attempt.destination;
  EBB_TRY_ASSIGN(const bool was_moved, files.exists(parent / old));
  EBB_TRY_ASSIGN(const bool is_there, files.exists(destination));
  if (was_moved && !is_there) {
    EBB_TRY(files.rename_new(parent / old, destination));
    EBB_TRY(files.sync_directory(parent));
    report.restored.push_back(attempt.destination);
  } else if (was_moved) {
    EBB_TRY(remove_tree(files, parent / old));
    report.removed.push_back(old);
  }
  const std::string journal = name_of(attempt.destination, kJournal, attempt.id);
  EBB_TRY_ASSIGN(const bool was_written, files.exists(parent / fresh));
  EBB_TRY_ASSIGN(const bool has_journal, files.exists(parent / journal));
  if (was_written && has_journal) return false;
  for (const auto& [there, name] : {std::pair(has_journal, journal), {was_written, fresh}}) {
    if (!there) continue;
    EBB_TRY(remove_tree(files, parent / name));
    report.removed.push_back(name);
  }
  return true;
}

// Ids of attempts at the destination that have a file of that kind.
Result<std::vector<std::string>> attempts_with(IoBackend& files, const fs::path& destination,
                                               std::string_view kind) {
  EBB_TRY_ASSIGN(const std::vector<std::string> names, files.list(destination.parent_path()));
  std::vector<std::string> ids;
  for (const std::string& name : names) {
    const auto found = parsed(name, kind);
    if (found && found->destination == destination.filename().string()) ids.push_back(found->id);
  }
  return ids;
}

bool is_held_lock(IoBackend& files, const fs::path& path) {
  const auto lock = files.open(path, {.access = Access::read_write});
  if (!lock) return false;
  const Result<> locked = files.lock(*lock);
  static_cast<void>(files.close(*lock));
  return !locked && locked.error().code == Code::busy;
}

}  // namespace

fs::path with_parent(const fs::path& destination) {
  fs::path path = destination.lexically_normal();
  if (!path.has_filename()) path = path.parent_path();
  return path.has_parent_path() ? path : fs::path(".") / path;
}

fs::path fresh_directory(const fs::path& destination, std::string_view id) {
  return destination.parent_path() / name_of(destination.filename().string(), kNew, id);
}

Temporary::Temporary(IoBackend& files, FileId lock, const fs::path& destination,
                     const std::string& id)
    : files_(&files), lock_(lock), id_(id) {
  const fs::path parent = destination.parent_path();
  const std::string name = destination.filename().string();
  lock_path_ = parent / name_of(name, kLock, id);
  fresh_ = fresh_directory(destination, id);
  old_ = parent / name_of(name, kOld, id);
  journal_ = parent / name_of(name, kJournal, id);
}

Temporary::~Temporary() {
  if (files_ == nullptr) return;
  if (!kept_) {
    // The journal first: without it nobody believes what is left of the directory.
    static_cast<void>(remove_tree(*files_, journal_));
    static_cast<void>(remove_tree(*files_, fresh_));
    // Removed while held, so that nobody finds it free and believes the rest stale.
    static_cast<void>(files_->remove(lock_path_));
  }
  static_cast<void>(files_->close(lock_));
}

Result<Temporary> Temporary::reserve(IoBackend& files, const fs::path& destination) {
  const fs::path parent = destination.parent_path();
  const std::string name = destination.filename().string();
  std::optional<Error> last;
  for (int attempt = 0; attempt < kAttempts; ++attempt) {
    EBB_TRY_ASSIGN(const std::string id, random_digits(kIdDigits));
    const fs::path lock_path = parent / name_of(name, kLock, id);
    auto lock =
        files.open(lock_path, {.access = Access::read_write, .creation = Creation::create_new});
    if (!lock) {
      last = std::move(lock).error();
      continue;
    }
    const Result<> locked = files.lock(*lock);
    // Between its making and its locking somebody may have taken the file for a leftover.
    const Result<bool> still_there = files.exists(lock_path);
    if (locked && still_there && *still_there) return Temporary(files, *lock, destination, id);
    if (!locked) last = locked.error();
    static_cast<void>(files.remove(lock_path));
    static_cast<void>(files.close(*lock));
  }
  return last.value_or(Error{Code::busy, parent.string() + ": no temporary name stays free"});
}

Result<std::optional<Temporary>> Temporary::adopt(IoBackend& files, const fs::path& destination,
                                                  const std::string& id) {
  const fs::path lock_path =
      destination.parent_path() / name_of(destination.filename().string(), kLock, id);
  const auto opened =
      files.open(lock_path, {.access = Access::read_write, .creation = Creation::create_or_open});
  if (!opened && opened.error().code == Code::io) return std::optional<Temporary>();
  if (!opened) return opened.error();
  const FileId lock = *opened;
  const Result<> locked = files.lock(lock);
  if (!locked) {
    static_cast<void>(files.close(lock));
    if (locked.error().code == Code::busy) return std::optional<Temporary>();
    return locked.error();
  }
  Temporary taken(files, lock, destination, id);
  // Whoever held it before may have finished, and removed lock and all.
  EBB_TRY_ASSIGN(const bool lock_there, files.exists(lock_path));
  EBB_TRY_ASSIGN(const bool fresh_there, files.exists(taken.fresh_));
  if (lock_there && fresh_there) return std::optional(std::move(taken));
  return std::optional<Temporary>();
}

Result<std::vector<std::string>> attempts_alive(IoBackend& files, const fs::path& destination,
                                                std::string_view own) {
  EBB_TRY_ASSIGN(std::vector<std::string> ids, attempts_with(files, destination, kLock));
  const fs::path parent = destination.parent_path();
  const std::string name = destination.filename().string();
  // Who clears leftovers holds each for a moment: locking waits longer than that.
  std::erase_if(ids, [&](const std::string& id) {
    return id == own || !is_held_lock(files, parent / name_of(name, kLock, id));
  });
  return ids;
}

Result<std::vector<std::string>> journaled_attempts(IoBackend& files, const fs::path& destination) {
  return attempts_with(files, destination, kJournal);
}

Result<> remove_tree(IoBackend& files, const fs::path& path) {
  EBB_TRY_ASSIGN(const bool there, files.exists(path));
  return there ? remove_below(files, path, 0) : Result<>();
}

Result<StaleTemporaries> remove_stale_temporaries(IoBackend& files, const fs::path& parent) {
  EBB_TRY_ASSIGN(const std::vector<std::string> names, files.list(parent));
  std::set<std::pair<std::string, std::string>> attempts;
  for (const std::string& name : names)
    for (const std::string_view kind : {kNew, kOld, kLock, kJournal})
      if (auto found = parsed(name, kind)) attempts.emplace(found->destination, found->id);
  StaleTemporaries report;
  for (const auto& [destination, id] : attempts) {
    const std::string lock_name = name_of(destination, kLock, id);
    // Made again where it is missing: two who clear at once must not meet.
    auto lock = files.open(parent / lock_name,
                           {.access = Access::read_write, .creation = Creation::create_or_open});
    // Somebody else's, in a folder that several people use.
    if (!lock && lock.error().code == Code::io) continue;
    if (!lock) return std::move(lock).error();
    // Closes, and with it unlocks, when it goes.
    const std::shared_ptr<void> held(
        nullptr, [&](void*) { static_cast<void>(files.close(*lock).has_value()); });
    const Result<> locked = files.lock(*lock);
    if (!locked && locked.error().code == Code::busy) continue;
    EBB_TRY(locked);
    EBB_TRY_ASSIGN(const bool cleared, clear(files, parent, {destination, id}, report));
    if (!cleared) continue;
    EBB_TRY(remove_tree(files, parent / lock_name));
    report.removed.push_back(lock_name);
  }
  if (!attempts.empty()) EBB_TRY(files.sync_directory(parent));
  return report;
}

}  // namespace ebb::libswap
