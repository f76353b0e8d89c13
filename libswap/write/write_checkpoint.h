// Writes a planned checkpoint and publishes it: the destination appears whole or not at all.
//
// The protocol, one durable step after another; N is a temporary beside the destination D, on the
// same file system (temporaries.h), P their parent:
//   1. Nothing is touched until the plan is sound, D is free (nothing, an empty directory, or what
//      may be replaced) and P has space.
//   2. Leftovers of crashed attempts in P are cleared; N's name is taken and locked.
//   3. N and its subdirectories are made.
//   4. Every shard file: created, space reserved, written, cut to its length, fsync.
//   5. fsync of the subdirectories of N, then of N.
//   6. Every commit file, in order: as 4, then fsync of the directory that holds it.
//   7. The caller's own check of N, if it asked for one.
//   8. If D is there and may be replaced: rename D to O. An empty directory is removed.
//   9. rename N to D, refused by the kernel when D has appeared meanwhile.
//      Where D is to be a file (Becomes::file), the only file of N is what is renamed.
//  10. fsync P. From here on D is durable.
//  11. O is removed; the lock is removed.
// A failure before 9 removes N (and gives D back its name): nothing half written stays. Where the
// source can be told from others (WriteOptions::source_identity), a crash or a cancellation leaves
// N and a journal of what of it is durable (attempt.h), and the next attempt of the same plan at
// the same destination resumes it: in 2 it takes N over, in 4 it leaves out the segments that are
// done. The commit files are written again.
// A crash before 9 leaves D absent or old, between 8 and 9 under the name O; the next attempt or
// remove_stale_temporaries() gives it back. A crash after 9 leaves the new D, or, before 10,
// either.
//
// Steps 4 and 6 go segment by segment, with several workers (segment_writer.h); the shards are made
// durable together, then each commit file.
//
// Where the plan packs its shard files, the segments of those are made by packed_segments.h, the
// commit files once it is known where everything lies.
//
// Memory: for each worker two segments, or what packed_segments.h says, one run of BoxReader and a
// block that is cast; and the indexes.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/catalog/emit.h"
#include "ebb/formats/catalog/format.h"
#include "ebb/libswap/publish/temporaries.h"
#include "ebb/libswap/queue/io_queue.h"

namespace ebb::libswap {

enum class Overwrite : std::uint8_t { refuse, replace };

// full: the plan stores every element of every tensor exactly once (repeats of whole boxes apart).
// Always: what was put where the plan says has the fingerprint of what the content's chunks say
// they hold, taken on the way. Reading the result back is the caller's, through `check`.
enum class Verify : std::uint8_t { none, full };

// Whether a derived tensor must be what readers will derive.
enum class Derivation : std::uint8_t { proven, assumed };

// What the destination is: a directory, or the only file of a plan that has one.
enum class Becomes : std::uint8_t { directory, file };

struct WriteProgress {
  std::uint64_t bytes_done = 0;   // those of an earlier attempt among them
  std::uint64_t bytes_total = 0;  // of all files, before compression
  std::uint64_t bytes_found = 0;  // done by an earlier attempt
};

struct WriteOptions {
  Overwrite overwrite = Overwrite::refuse;
  Becomes becomes = Becomes::directory;
  Verify verify = Verify::full;
  Derivation derived = Derivation::proven;
  Priority priority = Priority::background;
  std::uint32_t workers = 0;                             // 0: two for each core
  std::uint64_t segment_bytes = std::uint64_t{4} << 20;  // any; multiples of 4 KiB are fast
  // For segments, runs and casts of all workers together, and the bounce buffers of their source;
  // fewer workers than asked for where it is short. What one worker needs, at least.
  std::uint64_t memory_bytes = std::uint64_t{128} << 20;
  // Of the source's files and of everything else that decides about the elements and is not in the
  // content's catalog: what is interrupted resumes only where this is the same. "": what is
  // interrupted leaves nothing.
  std::string source_identity = {};
  std::chrono::milliseconds journal_interval{1000};
  const std::atomic<bool>* cancel = nullptr;                     // polled once per segment
  std::function<void(const WriteProgress&)> progress = nullptr;  // on the calling thread
  // Sees the finished files in their temporary directory, before they get their name; an error
  // stops the publication. `fingerprints`: as in WriteReport.
  std::function<Result<>(const fs::path& directory, std::span<const std::uint64_t> fingerprints)>
      check = nullptr;
};

struct WriteReport {
  std::uint64_t bytes = 0;        // of all files
  std::uint64_t plain_bytes = 0;  // of the files that were planned: before compression
  std::uint64_t files = 0;
  std::uint64_t bytes_found = 0;  // done by an earlier attempt
  double seconds = 0;             // the whole call, fsyncs included
  // Per content tensor: fingerprint.h of its elements in the content's dtype, as they were
  // written. 0 for one the plan does not store.
  std::vector<std::uint64_t> fingerprints;
};

// What a rank has to do with others that write files of the same checkpoint (save.h). On the
// calling thread; an error ends everything.
struct CollectiveHooks {
  // Nothing but the temporary's lock is there; from now on others may write below fresh().
  std::function<Result<>(const Temporary& temporary)> begun;
  // Whatever came of this rank's own files, once, after begun(): the directory must stay until
  // nobody else writes into it. No commit file is there yet.
  std::function<Result<>(Result<> mine)> shards_written;
};

// `plan` is of `content`. Blocks. The destination's parent must exist. Errors: usage (D exists, the
// plan's names, too little memory), no_space (both numbers), layout (the plan does not fit the
// content), unsupported (a derived tensor is not what it would be derived to), cancelled, and those
// of reading and writing; corrupt (what was gathered is not what the source holds).
Result<WriteReport> write_checkpoint(IoQueue& io, const Checkpoint& content, const EmitPlan& plan,
                                     const fs::path& destination, const WriteOptions& options,
                                     const CollectiveHooks& hooks = {});

// The file alone where the name ends as files of the format do, the plan has one, and no directory
// of that name is there: who made it wants one.
Becomes becomes(const formats::Format& to, const EmitPlan& plan, const fs::path& destination);

// Step 1's questions to the disk, for who will write `plan` later: D is free, P can be written and
// has the space. Leaves nothing.
Result<> check_destination(IoQueue& io, const EmitPlan& plan, const fs::path& destination);

// Steps 3 to 5 for the shard files of a plan that has passed check_plan(), below a directory that
// somebody else publishes and removes. options: segment_bytes, workers, memory_bytes, priority,
// cancel. REQUIRES: the plan packs nothing.
Result<WriteReport> write_shards(IoQueue& io, const Checkpoint& content, const EmitPlan& plan,
                                 const fs::path& directory, const WriteOptions& options);

}  // namespace ebb::libswap
