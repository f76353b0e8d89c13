// Temporary directories beside a destination, and what a crash leaves of them. For a destination
// DEST and an id of 16 hex digits there may be, in DEST's parent:
//   .DEST.ebb-new-<id>        the directory being written
//   .DEST.ebb-old-<id>        what DEST was before, moved aside while the new one takes its name
//   .DEST.ebb-journal-<id>    what of the directory is durable (attempt.h): with both there, the
//                             next attempt may resume it
//   .DEST.ebb-lock-<id>       held locked by whoever works with these; without a holder they
//                             are leftovers of a crash
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ebb/libswap/sys/io_backend.h"

namespace ebb::libswap {

// The destination normalised, so that it has a name and a parent.
fs::path with_parent(const fs::path& destination);

// The directory that an attempt with this id writes. REQUIRES: with_parent().
fs::path fresh_directory(const fs::path& destination, std::string_view id);

// The names of one attempt, and the lock that says it is alive. Borrows the backend.
class Temporary {
 public:
  // Makes an id nobody uses, and locks it. Nothing but the lock file exists then.
  static Result<Temporary> reserve(IoBackend& files, const fs::path& destination);
  // Takes over what an attempt left that is not alive. nullopt: it is, or nothing is left of it.
  static Result<std::optional<Temporary>> adopt(IoBackend& files, const fs::path& destination,
                                                const std::string& id);
  Temporary(Temporary&&) noexcept = default;
  Temporary& operator=(Temporary&&) = delete;
  // Removes the directory being written, the journal and the lock, unless they are to be kept;
  // never what was moved aside.
  ~Temporary();
  void keep() { kept_ = true; }

  const std::string& id() const { return id_; }
  const fs::path& fresh() const { return fresh_; }
  const fs::path& moved_aside() const { return old_; }
  const fs::path& journal() const { return journal_; }

 private:
  Temporary(IoBackend& files, FileId lock, const fs::path& destination, const std::string& id);

  struct Borrowed {
    void operator()(IoBackend*) const {}
  };
  std::unique_ptr<IoBackend, Borrowed> files_;  // null once moved from
  FileId lock_;
  std::string id_;
  fs::path lock_path_;
  fs::path fresh_;
  fs::path old_;
  fs::path journal_;
  bool kept_ = false;
};

// Ids of attempts at a destination whose lock is held: by others that are at work. `own`: that of
// the caller, which is not asked for, since trying a lock that is held takes a while.
Result<std::vector<std::string>> attempts_alive(IoBackend& files, const fs::path& destination,
                                                std::string_view own);

// Ids of attempts at a destination that left a journal; some may be alive.
Result<std::vector<std::string>> journaled_attempts(IoBackend& files, const fs::path& destination);

// Removes a file, or a directory with everything below it; it need not exist.
Result<> remove_tree(IoBackend& files, const fs::path& path);

struct StaleTemporaries {
  std::vector<std::string> removed;   // names in the parent, as above
  std::vector<std::string> restored;  // destinations that got their old content back
};
// Clears what crashes left in a directory: half-written directories go; a destination that was
// moved aside and not yet replaced comes back. Attempts that are alive or another user's, and
// directories with a journal, are left alone.
Result<StaleTemporaries> remove_stale_temporaries(IoBackend& files, const fs::path& parent);

}  // namespace ebb::libswap
