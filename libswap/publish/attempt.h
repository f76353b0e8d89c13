// Attempt: one try at writing a destination, from nothing or resuming an interrupted one of the
// same plan and source.
//
// What is noted as durable is written into a journal beside the destination about once an interval;
// nothing is written before the first interval is over, so that short work leaves no journal. An
// attempt that is given up because it was asked to stop keeps directory and journal; any other end
// removes them.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ebb/libswap/publish/temporaries.h"
#include "ebb/libswap/publish/written_segment.h"
#include "ebb/libswap/queue/io_queue.h"

namespace ebb::libswap {

// Journal: which segments of an interrupted attempt are durable, for the next one to resume.
//
// A file of records, each a length (4 bytes), the CRC32C of what follows (4 bytes) and so many
// bytes; little-endian. The first says of what the attempt is: an identity of plan and source.
// Every other one tells of segments that were durable when it was appended. What follows the first
// damaged record is ignored: a crash cuts the last one.
struct JournalContent {
  std::string identity;
  std::vector<WrittenSegment> segments;
  std::uint64_t bytes = 0;  // of the records that are whole
};
// nullopt: nothing in it can be used.
Result<std::optional<JournalContent>> read_journal(IoQueue& io, const fs::path& path);

// One writer. Closes when it goes.
class Journal {
 public:
  // A new file with its first record, durable but for its name.
  static Result<std::unique_ptr<Journal>> create(IoQueue& io, const fs::path& path,
                                                 std::string_view identity);
  // Goes on behind the first `bytes` bytes.
  static Result<std::unique_ptr<Journal>> reopen(IoQueue& io, const fs::path& path,
                                                 std::uint64_t bytes);
  ~Journal();
  Journal(const Journal&) = delete;
  Journal& operator=(const Journal&) = delete;

  // Durable on return.
  Result<> append(std::span<const WrittenSegment> segments);

 private:
  Journal(IoQueue& io, FileId file, std::uint64_t end) : io_(io), file_(file), end_(end) {}
  Result<> append_record(ByteView payload);

  IoQueue& io_;
  FileId file_;
  std::uint64_t end_ = 0;
};

class Attempt {
 public:
  // `identity` is of plan and source; "": never resumes and never leaves anything. Attempts at the
  // same destination that are dead and of another identity are removed; Code::busy where one is
  // alive.
  static Result<Attempt> begin(IoQueue& io, const fs::path& destination, std::string identity,
                               std::chrono::milliseconds interval);

  const Temporary& temporary() const { return temporary_; }
  // What need not be made again; empty when this one starts from nothing.
  std::span<const WrittenSegment> finished() const { return finished_; }
  // Nothing is finished, or it turned out to be of no use: removes what is there.
  Result<> start_over();

  // The data of these segments is durable. True when save() is due.
  bool note(std::span<const WrittenSegment> segments);
  // Into the journal, with everything noted before. REQUIRES: the names of the segments' files are
  // durable, too.
  Result<> save();
  bool can_be_kept() const { return !identity_.empty(); }
  void keep() { temporary_.keep(); }

 private:
  using Clock = std::chrono::steady_clock;
  Attempt(IoQueue& io, Temporary temporary, std::string identity,
          std::chrono::milliseconds interval);

  IoQueue* io_;
  Temporary temporary_;
  std::string identity_;
  std::chrono::milliseconds interval_;
  std::unique_ptr<Journal> journal_;
  std::vector<WrittenSegment> finished_;
  std::vector<WrittenSegment> unsaved_;
  Clock::time_point saved_ = Clock::now();
};

}  // namespace ebb::libswap
