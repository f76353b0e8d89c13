// PosixBackend: names and files through the kernel, shared by the io_uring and the threads backend,
// which add the data operations. Also the two ways to make one.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ebb/libswap/sys/io_backend.h"
#include "ebb/libswap/sys/mutex.h"
#include "ebb/libswap/sys/unique.h"

namespace ebb::libswap {

struct OpenFile {
  Descriptor descriptor;
  std::string path;
  bool direct = false;
  std::uint32_t alignment = 4096;
};

// Opens a regular file. Direct::preferred falls back to buffered silently; OpenFile::direct tells.
// Never follows a symbolic link to something it may write, never waits on a FIFO.
bool in_memory(int descriptor);  // on tmpfs
Result<OpenFile> open_regular_file(const fs::path& path, const OpenOptions& options);

class PosixBackend : public IoBackend {
 public:
  Result<FileId> open(const fs::path& path, const OpenOptions& options) override;
  Result<> close(FileId file) override;
  Result<FileInfo> info(FileId file) override;
  std::string path_of(FileId file) const override;
  Result<> allocate(FileId file, std::uint64_t bytes) override;
  Result<> truncate(FileId file, std::uint64_t bytes) override;
  Result<> sync(FileId file) override;
  Result<> lock(FileId file) override;
  bool is_held(FileId file, std::uint64_t byte) override;
  Result<> make_directory(const fs::path& path, Visibility visibility) override;
  Result<> sync_directory(const fs::path& path) override;
  Result<> rename(const fs::path& from, const fs::path& to) override;
  Result<> rename_new(const fs::path& from, const fs::path& to) override;
  Result<> remove(const fs::path& path) override;
  Result<std::vector<std::string>> list(const fs::path& directory) override;
  Result<bool> exists(const fs::path& path) override;
  Result<bool> is_directory(const fs::path& path) override;
  Result<bool> is_file(const fs::path& path) override;
  Result<std::uint64_t> free_bytes(const fs::path& directory) override;

 protected:
  // nullptr when there is no such file. Holding it keeps the descriptor from being reused.
  std::shared_ptr<const OpenFile> find(FileId file) const;

 private:
  Result<std::shared_ptr<const OpenFile>> get(FileId file) const;

  mutable Mutex mutex_;
  std::map<FileId, std::shared_ptr<const OpenFile>> files_ EBB_GUARDED_BY(mutex_);
  std::int32_t next_ EBB_GUARDED_BY(mutex_) = 0;
};

// `threads` blocking calls at a time; 1 to 64.
Result<std::unique_ptr<IoBackend>> make_threads_backend(std::uint32_t threads);
// Code::unsupported says why this machine refuses io_uring.
Result<std::unique_ptr<IoBackend>> make_uring_backend();

}  // namespace ebb::libswap
