#include "ebb/libswap/testing/memory_backend.h"

#include <cerrno>
#include <deque>

#include "ebb/libswap/sys/errno_error.h"
#include "ebb/libswap/sys/mutex.h"
#include "ebb/libswap/sys/process.h"
#include "ebb/libswap/testing/memory_disk.h"

namespace ebb::libswap {
namespace {

constexpr std::size_t kCapacity = 256;

class MemoryBackend : public IoBackend {
 public:
  MemoryBackend(std::shared_ptr<MemoryDisk> disk, std::uint32_t alignment)
      : disk_(std::move(disk)), state_(disk_->state()), alignment_(alignment) {}
  ~MemoryBackend() override {
    const MutexLock lock(state_.mutex);
    for (auto& [id, file] : files_) unlock(file);
  }

  std::string_view name() const override { return "memory"; }

  Result<FileId> open(const fs::path& path, const OpenOptions& options) override;
  Result<> close(FileId file) override;
  Result<FileInfo> info(FileId file) override;
  std::string path_of(FileId file) const override;
  Result<> allocate(FileId file, std::uint64_t bytes) override;
  Result<> truncate(FileId file, std::uint64_t bytes) override;
  Result<> sync(FileId file) override;
  Result<> lock(FileId file) override;
  bool is_held(FileId, std::uint64_t) override { return false; }  // nobody else has this disk
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

  std::size_t capacity() const override { return kCapacity; }
  void submit(std::span<const RawOp> ops) override;
  std::size_t wait(std::span<RawDone> done) override;
  void wake() override;

 private:
  struct Open {
    std::string path;
    std::shared_ptr<MemoryNode> node;
    OpenOptions options;
  };
  Result<Open*> get(FileId file) EBB_REQUIRES(state_.mutex);
  int rename_error(const fs::path& from, const fs::path& to) const EBB_REQUIRES(state_.mutex);
  void rename_now(const fs::path& from, const fs::path& to) EBB_REQUIRES(state_.mutex);
  void unlock(const Open& file) EBB_REQUIRES(state_.mutex) {
    if (file.node->locked_by == this) file.node->locked_by = nullptr;
  }
  std::int32_t perform(const RawOp& op);

  std::shared_ptr<MemoryDisk> disk_;
  MemoryDisk::State& state_;
  const std::uint32_t alignment_;  // of direct I/O
  std::map<FileId, Open> files_ EBB_GUARDED_BY(state_.mutex);
  std::int32_t next_ EBB_GUARDED_BY(state_.mutex) = 0;

  Mutex mutex_;
  Condition progress_;
  std::deque<RawDone> done_ EBB_GUARDED_BY(mutex_);
  bool woken_ EBB_GUARDED_BY(mutex_) = false;
};

Result<MemoryBackend::Open*> MemoryBackend::get(FileId file) {
  const auto found = files_.find(file);
  if (found != files_.end()) return &found->second;
  return Error{Code::state, compose("file #{} is not open", static_cast<std::int32_t>(file)), ""};
}

Result<FileId> MemoryBackend::open(const fs::path& path, const OpenOptions& options) {
  const MutexLock lock(state_.mutex);
  const std::string what = "cannot open " + path.string();
  std::shared_ptr<MemoryNode> node = state_.node_at(path);
  if (node == nullptr) {
    std::optional<NameChange::End> end = state_.end_of(path);
    if (!end || options.creation == Creation::open_existing) return errno_error(ENOENT, what);
    node = std::make_shared<MemoryNode>(MemoryNode::Kind::file);
    state_.change({std::nullopt, std::move(end), node});
  } else if (node->kind == MemoryNode::Kind::directory) {
    return errno_error(EISDIR, what);
  } else if (options.creation == Creation::create_new) {
    return errno_error(EEXIST, what);
  }
  const FileId id{next_++};
  files_.emplace(id, Open{path.string(), node, options});
  return id;
}

Result<> MemoryBackend::close(FileId file) {
  const MutexLock lock(state_.mutex);
  EBB_TRY_ASSIGN(const Open* open, get(file));
  unlock(*open);
  files_.erase(file);
  return {};
}

Result<FileInfo> MemoryBackend::info(FileId file) {
  const MutexLock lock(state_.mutex);
  EBB_TRY_ASSIGN(const Open* open, get(file));
  FileInfo info{open->node->file.size(), open->options.direct != Direct::off, alignment_};
  info.device = reinterpret_cast<std::uintptr_t>(&state_) ^ process_id() << 48;
  return info;
}

std::string MemoryBackend::path_of(FileId file) const {
  const MutexLock lock(state_.mutex);
  const auto found = files_.find(file);
  if (found != files_.end()) return found->second.path;
  return compose("file #{}", static_cast<std::int32_t>(file));
}

Result<> MemoryBackend::allocate(FileId file, std::uint64_t bytes) {
  const MutexLock lock(state_.mutex);
  EBB_TRY_ASSIGN(const Open* open, get(file));
  if (bytes <= open->node->file.size()) return {};
  if (state_.resize(open->node->file, bytes)) return {};
  return errno_error(ENOSPC, compose("cannot reserve {} bytes for {}", bytes, open->path));
}

Result<> MemoryBackend::truncate(FileId file, std::uint64_t bytes) {
  const MutexLock lock(state_.mutex);
  EBB_TRY_ASSIGN(const Open* open, get(file));
  if (state_.resize(open->node->file, bytes)) return {};
  return errno_error(ENOSPC, compose("cannot make {} {} bytes long", open->path, bytes));
}

Result<> MemoryBackend::sync(FileId file) {
  const MutexLock lock(state_.mutex);
  EBB_TRY_ASSIGN(const Open* open, get(file));
  open->node->file.sync();
  return {};
}

Result<> MemoryBackend::lock(FileId file) {
  const MutexLock lock(state_.mutex);
  EBB_TRY_ASSIGN(const Open* open, get(file));
  const void*& holder = open->node->locked_by;
  if (holder != nullptr) {
    return Error{Code::busy, open->path + " is locked by another user", ""};
  }
  holder = this;
  return {};
}

Result<> MemoryBackend::make_directory(const fs::path& path, Visibility) {
  const MutexLock lock(state_.mutex);
  const std::string what = "cannot make the directory " + path.string();
  const std::shared_ptr<MemoryNode> there = state_.node_at(path);
  if (there != nullptr && there->kind == MemoryNode::Kind::directory) return {};
  if (there != nullptr) return errno_error(EEXIST, what);
  std::optional<NameChange::End> end = state_.end_of(path);
  if (!end) return errno_error(ENOENT, what);
  auto node = std::make_shared<MemoryNode>(MemoryNode::Kind::directory);
  state_.change({std::nullopt, std::move(end), std::move(node)});
  return {};
}

Result<> MemoryBackend::sync_directory(const fs::path& path) {
  const MutexLock lock(state_.mutex);
  const std::shared_ptr<MemoryNode> node = state_.node_at(path);
  if (node == nullptr || node->kind != MemoryNode::Kind::directory) {
    return errno_error(ENOENT, "cannot open the directory " + path.string());
  }
  state_.sync_names(node.get());
  return {};
}

int MemoryBackend::rename_error(const fs::path& from, const fs::path& to) const {
  const std::shared_ptr<MemoryNode> node = state_.node_at(from);
  const std::optional<NameChange::End> end = state_.end_of(to);
  if (node == nullptr || node == state_.root || !end || end->name.empty()) return ENOENT;
  const std::shared_ptr<MemoryNode> old = state_.node_at(to);
  if (old == nullptr || old == node) return 0;
  if (old->kind != node->kind) return old->kind == MemoryNode::Kind::file ? ENOTDIR : EISDIR;
  return old->names.empty() ? 0 : ENOTEMPTY;
}

void MemoryBackend::rename_now(const fs::path& from, const fs::path& to) {
  std::shared_ptr<MemoryNode> node = state_.node_at(from);
  if (node == state_.node_at(to)) return;
  state_.change({state_.end_of(from), state_.end_of(to), std::move(node)});
}

Result<> MemoryBackend::rename(const fs::path& from, const fs::path& to) {
  const MutexLock lock(state_.mutex);
  if (const int error = rename_error(from, to); error != 0) {
    return errno_error(error, compose("cannot rename {} to {}", from.string(), to.string()));
  }
  rename_now(from, to);
  return {};
}

Result<> MemoryBackend::rename_new(const fs::path& from, const fs::path& to) {
  const MutexLock lock(state_.mutex);
  const int error = state_.node_at(to) != nullptr ? EEXIST : rename_error(from, to);
  if (error != 0) {
    return errno_error(error, compose("cannot rename {} to {}", from.string(), to.string()));
  }
  rename_now(from, to);
  return {};
}

Result<> MemoryBackend::remove(const fs::path& path) {
  const MutexLock lock(state_.mutex);
  std::shared_ptr<MemoryNode> node = state_.node_at(path);
  const int error = node == nullptr || node == state_.root ? ENOENT
                    : node->names.empty()                  ? 0
                                                           : ENOTEMPTY;
  if (error != 0) return errno_error(error, "cannot remove " + path.string());
  state_.change({state_.end_of(path), std::nullopt, std::move(node)});
  return {};
}

Result<std::vector<std::string>> MemoryBackend::list(const fs::path& directory) {
  const MutexLock lock(state_.mutex);
  const std::shared_ptr<MemoryNode> node = state_.node_at(directory);
  if (node == nullptr || node->kind != MemoryNode::Kind::directory) {
    return errno_error(ENOENT, "cannot list " + directory.string());
  }
  std::vector<std::string> names;
  for (const auto& [name, child] : node->names) names.push_back(name);
  return names;
}

Result<bool> MemoryBackend::exists(const fs::path& path) {
  const MutexLock lock(state_.mutex);
  return state_.node_at(path) != nullptr;
}

Result<bool> MemoryBackend::is_directory(const fs::path& path) {
  const MutexLock lock(state_.mutex);
  const std::shared_ptr<MemoryNode> node = state_.node_at(path);
  return node != nullptr && node->kind == MemoryNode::Kind::directory;
}

Result<bool> MemoryBackend::is_file(const fs::path& path) {
  const MutexLock lock(state_.mutex);
  const std::shared_ptr<MemoryNode> node = state_.node_at(path);
  return node != nullptr && node->kind == MemoryNode::Kind::file;
}

Result<std::uint64_t> MemoryBackend::free_bytes(const fs::path& directory) {
  const MutexLock lock(state_.mutex);
  if (state_.node_at(directory) == nullptr) {
    return errno_error(ENOENT, "cannot ask for the free space of " + directory.string());
  }
  return state_.free_bytes();
}

void MemoryBackend::submit(std::span<const RawOp> ops) {
  for (const RawOp& op : ops) {
    const RawDone done{op.tag, perform(op)};
    const MutexLock lock(mutex_);
    done_.push_back(done);
  }
  const MutexLock lock(mutex_);
  progress_.notify_one();
}

std::int32_t MemoryBackend::perform(const RawOp& op) {
  const MutexLock lock(state_.mutex);
  const Result<Open*> open = get(op.file);
  if (!open) return -EBADF;
  MemoryFile& file = (*open)->node->file;
  if (op.kind == RawOp::Kind::sync_data) {
    file.sync();
    return 0;
  }
  const bool direct = (*open)->options.direct != Direct::off;
  const std::uint64_t address = reinterpret_cast<std::uintptr_t>(op.data);
  if (direct && (op.offset | op.size | address) % alignment_ != 0) return -EINVAL;
  if (op.kind == RawOp::Kind::read) {
    const std::uint64_t left = op.offset < file.size() ? file.size() - op.offset : 0;
    const std::uint64_t count = std::min<std::uint64_t>(left, op.size);
    file.read(op.offset, {op.data, count});
    return static_cast<std::int32_t>(count);
  }
  if ((*open)->options.access == Access::read) return -EBADF;
  if (op.offset + op.size > file.size() && !state_.resize(file, op.offset + op.size))
    return -ENOSPC;
  file.write(op.offset, {op.data, op.size});
  return static_cast<std::int32_t>(op.size);
}

std::size_t MemoryBackend::wait(std::span<RawDone> done) {
  const MutexLock lock(mutex_);
  while (!woken_ && done_.empty()) progress_.wait(mutex_);
  woken_ = false;
  std::size_t count = 0;
  for (; count < done.size() && !done_.empty(); ++count) {
    done[count] = done_.front();
    done_.pop_front();
  }
  return count;
}

void MemoryBackend::wake() {
  const MutexLock lock(mutex_);
  woken_ = true;
  progress_.notify_one();
}

}  // namespace

std::unique_ptr<IoBackend> make_memory_backend(std::shared_ptr<MemoryDisk> disk,
                                               std::uint32_t alignment) {
  return std::make_unique<MemoryBackend>(std::move(disk), alignment);
}

}  // namespace ebb::libswap
