// OutputFiles: the files that are being written below a directory, few of them open at a time.
// Thread-safe; workers open and write, one committer makes durable and closes.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "ebb/formats/catalog/emit.h"
#include "ebb/libswap/queue/io_queue.h"
#include "ebb/libswap/sys/mutex.h"

namespace ebb::libswap {

// Whether a file's space is taken before it is written, so that a disk that is too full is found
// out at once, or as it grows, because nobody knows how large it will be.
enum class Reservation : std::uint8_t { whole_files, none };

class OutputFiles {
 public:
  // How many may be open; a worker that wants one more waits until the committer has closed some.
  static constexpr std::uint32_t kMostOpen = 128;
  // Disks with larger blocks are refused.
  static constexpr std::uint64_t kLargestBlock = std::uint64_t{64} << 10;

  static constexpr std::uint64_t kBlock = 4096;  // of a disk, at least

  struct Settings {
    std::uint64_t segment_bytes = 0;
    Priority priority = Priority::background;
    Creation creation = Creation::create_new;
    Reservation reservation = Reservation::whole_files;
  };
  // Files are written past the page cache where the file system allows it and `segment_bytes` does.
  OutputFiles(IoQueue& io, fs::path directory, std::span<const OutputFile> files,
              const Settings& settings);
  ~OutputFiles();  // closes

  // Makes or opens the file, as `creation` says, and reserves its space, once. Several may ask at a
  // time. Whoever it fails for tells why before stop(): until then nobody else hears that something
  // failed, and could be the first to say so.
  Result<> ensure_open(std::uint32_t file);
  // Offsets of writes are multiples of this. REQUIRES: ensure_open().
  std::uint64_t alignment(std::uint32_t file) const { return get(file).alignment; }
  // Writes `data`, which must stay, and zeros up to the next block's border, put behind it.
  // REQUIRES: ensure_open(); space up to the next multiple of kLargestBlock behind `data`.
  void write(std::uint32_t file, std::uint64_t offset, std::span<std::byte> data,
             std::function<void(Result<>)> done);

  // Data and sizes of all of them, many at a time.
  Result<> sync(std::span<const std::uint32_t> files);
  // Cut to so many bytes. REQUIRES: all of them are written.
  Result<> cut(std::uint32_t file, std::uint64_t size);
  Result<> close(std::uint32_t file);
  void stop();  // those who wait in ensure_open() fail

 private:
  enum class State : std::uint8_t { absent, opening, open, closed };
  struct Output {
    State state = State::absent;
    FileId id{};
    std::uint64_t alignment = 1;  // of offsets and sizes of writes
  };
  Result<Output> make(const OutputFile& file);
  Output get(std::uint32_t file) const;

  IoQueue& io_;
  fs::path directory_;
  std::span<const OutputFile> files_;
  Settings settings_;
  Direct direct_;
  mutable Mutex mutex_;
  Condition changed_;
  std::vector<Output> outputs_ EBB_GUARDED_BY(mutex_);
  std::uint32_t open_ EBB_GUARDED_BY(mutex_) = 0;  // or being opened
  bool stopped_ EBB_GUARDED_BY(mutex_) = false;
};

}  // namespace ebb::libswap
