// Temporary directories beside a destination, and what a crash leaves of them. For a destination
// DEST and an id of 16 hex digits there may be, in DEST's parent:
//   .DEST.ebb-new-<id>        the directory being written
//   .DEST.ebb-old-<id>        what DEST was before, moved aside while the new one takes its name
//   .DEST.ebb-lock-<id>       held locked by whoever works with these two; without a holder they
//                             are leftovers of a crash
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "libswap/sys/io_backend.h"

namespace libswap {

// The names of one attempt, and the lock that says it is alive. Borrows the backend.
class Temporary {
 public:
  // Makes an id nobody uses, and locks it. Nothing but the lock file exists then.
  static Result<Temporary> reserve(IoBackend& files, const fs::path& destination);
  Temporary(Temporary&& other) noexcept;
  Temporary& operator=(Temporary&&) = delete;
  ~Temporary();  // removes the directory being written and the lock; never what was moved aside

  const fs::path& fresh() const { return fresh_; }
  const fs::path& moved_aside() const { return old_; }

 private:
  Temporary(IoBackend& files, FileId lock, fs::path lock_path, fs::path fresh, fs::path old);

  IoBackend* files_;  // null once moved from
  FileId lock_;
  fs::path lock_path_;
  fs::path fresh_;
  fs::path old_;
};

// Removes a file, or a directory with everything below it; it need not exist.
Result<> remove_tree(IoBackend& files, const fs::path& path);

struct StaleTemporaries {
  std::vector<std::string> removed;   // names in the parent, as above
  std::vector<std::string> restored;  // destinations that got their old content back
};
// Clears what crashes left in a directory: half-written directories go; a destination that was
// moved aside and not yet replaced comes back. Attempts that are alive are left alone.
Result<StaleTemporaries> remove_stale_temporaries(IoBackend& files, const fs::path& parent);

}  // namespace libswap
