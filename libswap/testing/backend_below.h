// A backend that passes every call on to the one below it: decorators override what they change.
#pragma once

#include <memory>
#include <utility>

#include "ebb/libswap/sys/io_backend.h"

namespace ebb::libswap {

class BackendBelow : public IoBackend {
 public:
  explicit BackendBelow(std::unique_ptr<IoBackend> below) : below_(std::move(below)) {}

  std::string_view name() const override { return below_->name(); }
  Result<FileId> open(const fs::path& path, const OpenOptions& options) override {
    return below_->open(path, options);
  }
  Result<> close(FileId file) override { return below_->close(file); }
  Result<FileInfo> info(FileId file) override { return below_->info(file); }
  std::string path_of(FileId file) const override { return below_->path_of(file); }
  Result<> allocate(FileId file, std::uint64_t bytes) override {
    return below_->allocate(file, bytes);
  }
  Result<> truncate(FileId file, std::uint64_t bytes) override {
    return below_->truncate(file, bytes);
  }
  Result<> sync(FileId file) override { return below_->sync(file); }
  Result<> lock(FileId file) override { return below_->lock(file); }
  bool is_held(FileId file, std::uint64_t byte) override { return below_->is_held(file, byte); }
  Result<> make_directory(const fs::path& path, Visibility visibility) override {
    return below_->make_directory(path, visibility);
  }
  Result<> sync_directory(const fs::path& path) override { return below_->sync_directory(path); }
  Result<> rename(const fs::path& from, const fs::path& to) override {
    return below_->rename(from, to);
  }
  Result<> rename_new(const fs::path& from, const fs::path& to) override {
    return below_->rename_new(from, to);
  }
  Result<> remove(const fs::path& path) override { return below_->remove(path); }
  Result<std::vector<std::string>> list(const fs::path& directory) override {
    return below_->list(directory);
  }
  Result<bool> exists(const fs::path& path) override { return below_->exists(path); }
  Result<bool> is_directory(const fs::path& path) override { return below_->is_directory(path); }
  Result<bool> is_file(const fs::path& path) override { return below_->is_file(path); }
  Result<std::uint64_t> free_bytes(const fs::path& directory) override {
    return below_->free_bytes(directory);
  }

  std::size_t capacity() const override { return below_->capacity(); }
  void submit(std::span<const RawOp> ops) override { below_->submit(ops); }
  std::size_t wait(std::span<RawDone> done) override { return below_->wait(done); }
  void wake() override { below_->wake(); }
  Result<> register_buffers(std::span<std::byte> memory, std::uint64_t unit) override {
    return below_->register_buffers(memory, unit);
  }
  void unregister_buffers(std::span<std::byte> memory) override {
    below_->unregister_buffers(memory);
  }

 protected:
  IoBackend& below() { return *below_; }
  const IoBackend& below() const { return *below_; }

 private:
  std::unique_ptr<IoBackend> below_;
};

}  // namespace ebb::libswap
