// Journal: which segments of an interrupted attempt are durable, for the next one to resume.
//
// A file of records, each a length (4 bytes), the CRC32C of what follows (4 bytes) and so many
// bytes; little-endian. The first says of what the attempt is: an identity of plan and source.
// Every other one tells of segments that were durable when it was appended. What follows the first
// damaged record is ignored: a crash cuts the last one.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ebb/libswap/publish/written_segment.h"
#include "ebb/libswap/queue/io_queue.h"

namespace ebb::libswap {

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

}  // namespace ebb::libswap
