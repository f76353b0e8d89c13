// The I/O seam: everything libswap does to the outside world, as an interface with three
// implementations - io_uring, a pool of threads, memory - and a decorator that injects faults.
// Data operations answer like the kernel does (a byte count or -errno): interpreting them is
// IoQueue's.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ebb/formats/core/result.h"

namespace ebb::libswap {

namespace fs = std::filesystem;

enum class FileId : std::int32_t {};

enum class Access : std::uint8_t { read, read_write };
enum class Direct : std::uint8_t { required, preferred, off };  // O_DIRECT
enum class Creation : std::uint8_t { open_existing, create_new, create_or_open };
// Of what is created: 0600/0700, or what the user's umask leaves (published checkpoints).
enum class Visibility : std::uint8_t { owner, by_umask };

struct OpenOptions {
  Access access = Access::read;
  Creation creation = Creation::open_existing;
  Direct direct = Direct::off;
  Visibility visibility = Visibility::owner;
};

struct FileInfo {
  std::uint64_t size = 0;
  bool direct = false;             // O_DIRECT is really on
  std::uint32_t alignment = 4096;  // of offsets, sizes and memory when direct
  bool in_memory = false;          // tmpfs: nothing of it survives a power loss
  bool named = true;               // false: its last name was removed
  std::uint64_t device = 0;        // the file system's number, on this machine
};

struct RawOp {
  enum class Kind : std::uint8_t { read, write, sync_data };
  Kind kind = Kind::read;
  FileId file{};
  std::uint64_t offset = 0;
  std::byte* data = nullptr;
  std::uint32_t size = 0;  // at most 16 MiB
  std::uint64_t tag = 0;
};
struct RawDone {
  std::uint64_t tag = 0;
  std::int32_t result = 0;  // bytes moved, or -errno
};

class IoBackend {
 public:
  virtual ~IoBackend() = default;
  virtual std::string_view name() const = 0;  // "io_uring", "threads", "memory"

  // --- names and files: synchronous, any thread, every one a durable operation a crash may precede
  // ---
  virtual Result<FileId> open(const fs::path& path, const OpenOptions& options) = 0;
  virtual Result<> close(FileId file) = 0;
  virtual Result<FileInfo> info(FileId file) = 0;
  virtual std::string path_of(FileId file) const = 0;  // for messages; "file #7" when unknown
  virtual Result<> allocate(FileId file, std::uint64_t bytes) = 0;  // reserves; never sparse
  virtual Result<> truncate(FileId file, std::uint64_t bytes) = 0;
  virtual Result<> sync(FileId file) = 0;  // fsync
  virtual Result<> lock(FileId file) = 0;  // flock; Code::busy when held
  // Whether a reader holds this byte with a shared lock (file_lock.h); it may lie behind the end.
  virtual bool is_held(FileId file, std::uint64_t byte) = 0;
  // One level; existing is fine.
  virtual Result<> make_directory(const fs::path& path,
                                  Visibility visibility = Visibility::owner) = 0;
  virtual Result<> sync_directory(const fs::path& path) = 0;
  virtual Result<> rename(const fs::path& from, const fs::path& to) = 0;  // replaces
  virtual Result<> rename_new(const fs::path& from,
                              const fs::path& to) = 0;  // fails when `to` exists
  virtual Result<> remove(const fs::path& path) = 0;    // file or empty directory
  virtual Result<std::vector<std::string>> list(const fs::path& directory) = 0;  // sorted names
  virtual Result<bool> exists(const fs::path& path) = 0;
  // Both of the name itself: a link is neither.
  virtual Result<bool> is_directory(const fs::path& path) = 0;
  virtual Result<bool> is_file(const fs::path& path) = 0;
  virtual Result<std::uint64_t> free_bytes(const fs::path& directory) = 0;

  // --- data: called by one thread only (the IoQueue's) ---
  // Memory that many operations will use: the kernel keeps hold of its pages, in slices of whole
  // `unit`s, where it can and may. Nothing but speed depends on it.
  virtual Result<> register_buffers(std::span<std::byte> memory, std::uint64_t unit) {
    return Error{Code::unsupported, compose("{} keeps no hold of {} bytes in units of {}", name(),
                                            memory.size(), unit)};
  }
  // Before that memory is given back. REQUIRES: no operation uses it.
  virtual void unregister_buffers(std::span<std::byte> memory) { static_cast<void>(memory); }
  virtual std::size_t capacity() const = 0;             // operations that may be in flight
  virtual void submit(std::span<const RawOp> ops) = 0;  // REQUIRES: in flight + ops <= capacity()
  // Blocks until at least one operation is done or wake() was called; returns how many were stored.
  virtual std::size_t wait(std::span<RawDone> done) = 0;
  virtual void wake() = 0;  // any thread
};

}  // namespace ebb::libswap
