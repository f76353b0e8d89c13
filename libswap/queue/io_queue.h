// IoQueue: all bytes go through one of these. Cuts requests into chunks, resumes short transfers,
// retries EINTR/EAGAIN, keeps two priority classes apart, counts bytes, and reads every result.
//
// One thread of its own drives the backend. submit() is for any thread and never blocks. Every
// error names the file, the offset and the kernel's reason. A read past a file's end is an error.
// In a child made by fork() every call answers Code::state.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>

#include "ebb/libswap/queue/io_request.h"
#include "ebb/libswap/sys/io_backend.h"

namespace ebb::libswap {

class IoQueue {
 public:
  using Options = IoOptions;
  static Result<std::unique_ptr<IoQueue>> start(std::unique_ptr<IoBackend> backend,
                                                const Options& options);
  ~IoQueue();  // drains
  IoQueue(const IoQueue&) = delete;
  IoQueue& operator=(const IoQueue&) = delete;

  void submit(IoRequest request);

  // Blocking forms, for everything that is not the step's hot path. REQUIRES: not the queue's
  // thread.
  Result<> read(FileId file, std::uint64_t offset, std::span<std::byte> into,
                Priority priority = Priority::step);
  Result<> write(FileId file, std::uint64_t offset, std::span<const std::byte> from,
                 Priority priority = Priority::step);
  Result<> sync_data(FileId file);

  // IoBackend's, on the queue's thread: for memory that step after step uses.
  Result<> register_buffers(std::span<std::byte> memory, std::uint64_t unit);
  void unregister_buffers(std::span<std::byte> memory);

  IoBackend& backend();  // names and files
  IoStats stats() const;

 private:
  struct Impl;
  Result<> run_there(const std::function<Result<>(IoBackend&)>& task);
  explicit IoQueue(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// The best backend this machine grants: io_uring, else threads; `note` says in one line what was
// chosen and why (seccomp, kernel.io_uring_disabled, old kernel), empty when io_uring works.
struct ChosenBackend {
  std::unique_ptr<IoBackend> backend;
  std::string note;
};
enum class BackendChoice : std::uint8_t { automatic, uring, threads };
Result<ChosenBackend> open_backend(BackendChoice choice);

}  // namespace ebb::libswap
