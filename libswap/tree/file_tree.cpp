#include "ebb/libswap/tree/file_tree.h"

#include <fcntl.h>
#include <linux/openat2.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <optional>

#include "ebb/formats/core/crc32c.h"
#include "ebb/formats/core/seen_parts.h"
#include "ebb/formats/core/units.h"
#include "ebb/libswap/sys/errno_error.h"
#include "ebb/libswap/sys/file_lock.h"
#include "ebb/libswap/sys/list_directory.h"
#include "ebb/libswap/sys/mutex.h"
#include "ebb/libswap/sys/process.h"
#include "ebb/libswap/tree/caches.h"
#include "ebb/libswap/tree/cold_reads.h"
#include "ebb/libswap/tree/probe.h"

namespace ebb::libswap {
namespace {

using formats::ByteSource;
using Entry = formats::SourceTree::Entry;

constexpr int kMaxDepth = 8;
constexpr std::uint64_t kMostDecoded = 32 * formats::MiB;
constexpr std::size_t kMaxEntries = 1'000'000;
constexpr std::size_t kMaxRead = std::size_t{1} << 30;  // the kernel moves a little less than 2 GiB

// Half of what the process may open, and enough to be useful.
std::size_t open_files_allowed() {
  struct rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return 64;
  return static_cast<std::size_t>(std::clamp<rlim_t>(limit.rlim_cur / 2, 4, 512));
}

// What a tree and the files opened from it share.
struct Files {
  std::string root;   // as the user gave it
  std::string below;  // what stands between a name and its path: "<root>/", or the file's directory
  Descriptor directory;
  std::string inside;  // from the directory to the root: "" or a path with a slash at its end
  std::string target;  // a single file's real name, which may be behind a link; empty: a directory
  mutable DescriptorCache cache{open_files_allowed()};
  mutable BounceBuffers buffers;

  std::string path_of(const std::string& name) const { return below + name; }
  Result<Descriptor> open(const std::string& name) const;
};

// Below the directory, whatever links lie on the way; O_NONBLOCK so that a FIFO cannot hang.
Result<Descriptor> Files::open(const std::string& name) const {
  const std::string real = target.empty() ? inside + name : target;
  open_how how{};
  how.flags = O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
  how.resolve = RESOLVE_BENEATH | RESOLVE_NO_MAGICLINKS;
  long opened = ::syscall(SYS_openat2, directory.get(), real.c_str(), &how, sizeof(how));
  // An old kernel or sandbox: the listing has looked at the links.
  if (opened < 0 && (errno == ENOSYS || errno == EPERM))
    opened = ::openat(directory.get(), real.c_str(), static_cast<int>(how.flags));
  if (opened < 0) return errno_error(errno, "cannot open " + path_of(name));
  Descriptor file(static_cast<int>(opened));
  struct stat status{};
  if (::fstat(file.get(), &status) != 0 || !S_ISREG(status.st_mode))
    return Error{Code::unsupported, path_of(name) + " is not a regular file"};
  // What is small is a header here and a header there; megabytes read ahead of each are read again
  // with the data. What is large goes by ColdReads.
  ::posix_fadvise(file.get(), 0, 0, POSIX_FADV_RANDOM);
  return file;
}

class FileSource : public ByteSource {
 public:
  static Result<std::shared_ptr<const ByteSource>> open(std::shared_ptr<const Files> files,
                                                        const Entry& entry) {
    auto source = std::make_shared<FileSource>(std::move(files), entry.name);
    EBB_TRY_ASSIGN(const std::shared_ptr<const Descriptor> file, source->open_file());
    struct stat status{};
    if (::fstat(file->get(), &status) != 0)
      return errno_error(errno, "cannot look at " + source->path_);
    source->size_ = static_cast<std::uint64_t>(status.st_size);
    source->device_ = status.st_dev;
    source->inode_ = status.st_ino;
    return std::shared_ptr<const ByteSource>(std::move(source));
  }
  FileSource(std::shared_ptr<const Files> files, std::string name)
      : files_(std::move(files)), entry_(std::move(name)), path_(files_->path_of(entry_)) {}
  ~FileSource() override {
    files_->cache.forget(this);
    files_->cache.forget(&inode_);
  }

  std::uint64_t size() const override { return size_; }
  std::string_view name() const override { return path_; }
  Result<> read(std::uint64_t offset, std::span<std::byte> into) const override;

 private:
  Result<std::shared_ptr<const Descriptor>> open_file() const;
  Result<std::size_t> read_large(const Descriptor& file, std::uint64_t offset,
                                 std::span<std::byte> into) const;
  Result<> still_the_same(const Descriptor& file) const;

  std::shared_ptr<const Files> files_;
  std::string entry_;
  std::string path_;
  std::uint64_t size_ = 0;
  dev_t device_ = 0;
  ino_t inode_ = 0;
};

Result<std::shared_ptr<const Descriptor>> FileSource::open_file() const {
  if (std::shared_ptr<const Descriptor> open = files_->cache.find(this)) return open;
  EBB_TRY_ASSIGN(Descriptor opened, files_->open(entry_));
  if (inode_ != 0) EBB_TRY(still_the_same(opened));
  return files_->cache.insert(this, std::move(opened));
}

Result<> FileSource::still_the_same(const Descriptor& file) const {
  struct stat status{};
  if (::fstat(file.get(), &status) != 0) return errno_error(errno, "cannot look at " + path_);
  if (status.st_dev == device_ && status.st_ino == inode_) return {};
  return Error{Code::moved, path_ + " was replaced while it was being read"};
}

// What the page cache holds, and the rest past it. How many bytes: all, or up to where neither
// goes.
Result<std::size_t> FileSource::read_large(const Descriptor& file, std::uint64_t offset,
                                           std::span<std::byte> into) const {
  DescriptorCache::Shared uncached = files_->cache.find(&inode_);
  if (uncached == nullptr) uncached = files_->cache.insert(&inode_, open_uncached(file.get()));
  // Nothing to look for where there is no way past the page cache.
  if (!*uncached) return std::size_t{0};
  const std::size_t cached = read_cached(file.get(), offset, into);
  if (into.size() - cached < kColdRead) return cached;
  offset += cached;
  into = into.subspan(cached);
  if (const auto before = before_blocks(offset, into.data()); before && *before < into.size()) {
    const ssize_t begun = ::pread(file.get(), into.data(), *before, static_cast<off_t>(offset));
    if (begun != static_cast<ssize_t>(*before)) return cached;
    return cached + *before + read_blocks(uncached->get(), offset + *before, into.subspan(*before));
  }
  EBB_TRY_ASSIGN(const std::size_t rest,
                 read_uncached(uncached->get(), files_->buffers, offset, into));
  return cached + rest;
}

Result<> FileSource::read(std::uint64_t offset, std::span<std::byte> into) const {
  const auto what = [this, offset, size = into.size()] {
    return compose("cannot read {} bytes at {}:{}", size, path_, offset);
  };
  if (offset > size_ || into.size() > size_ - offset)
    return Error{Code::incomplete, compose("{}: the file ends at {}", what(), size_)};
  EBB_TRY_ASSIGN(const std::shared_ptr<const Descriptor> file, open_file());
  if (into.size() >= kColdRead) {
    EBB_TRY_ASSIGN(const std::size_t done, read_large(*file, offset, into));
    offset += done;
    into = into.subspan(done);
  }
  while (!into.empty()) {
    const ssize_t count = ::pread(file->get(), into.data(), std::min(into.size(), kMaxRead),
                                  static_cast<off_t>(offset));
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return errno_error(errno, what());
    if (count == 0) {
      return Error{Code::incomplete,
                   compose("{}: the file was cut at {} meanwhile", what(), offset)};
    }
    offset += static_cast<std::uint64_t>(count);
    into = into.subspan(static_cast<std::size_t>(count));
  }
  return {};
}

class FileTree : public formats::SourceTree {
 public:
  FileTree(std::shared_ptr<const Files> files, std::vector<Entry> entries)
      : files_(std::move(files)), entries_(std::move(entries)) {}

  std::string_view root() const override { return files_->root; }
  const std::vector<Entry>& entries() const override { return entries_; }
  Result<std::shared_ptr<const ByteSource>> open(std::string_view name) const override {
    const auto found = std::ranges::lower_bound(entries_, name, {}, &Entry::name);
    if (found == entries_.end() || found->name != name)
      return Error{Code::incomplete, files_->path_of(std::string(name)) + " does not exist"};
    return FileSource::open(files_, *found);
  }
  Result<ByteVector> probe(std::string_view program, const ByteSource& file) const override {
    EBB_TRY_ASSIGN(const fs::path path, sister_program(program));
    std::error_code failed;
    if (!fs::exists(path, failed))
      return Error{Code::unsupported,
                   compose("{}: reading this needs {}, which this build does not have", file.name(),
                           path.string()),
                   "./dev setup && ./dev build"};
    return run_probe({path.string()}, file, ProbeLimits{});
  }
  Result<Decoded> decoded(const std::string& key, std::uint64_t bytes,
                          const std::function<Result<Decoded>()>& make) const override {
    return decoded_.get(key, bytes, make);
  }
  std::optional<std::uint32_t> seen(const std::string& key, std::uint64_t size, std::uint64_t first,
                                    ByteView bytes) const override {
    const std::uint32_t crc = formats::crc32_zip(0, bytes);
    const MutexLock lock(seen_mutex_);
    return seen_.add(key, size, first, bytes, crc);
  }
  // A descriptor of its own: that of the cache comes and goes.
  Hold hold(std::string_view name, std::uint64_t first, std::uint64_t count) const override {
    auto opened = files_->open(std::string(name));
    if (!opened || !lock_shared(opened->get(), first, count)) return nullptr;
    return std::make_shared<const Descriptor>(std::move(*opened));
  }

 private:
  std::shared_ptr<const Files> files_;
  std::vector<Entry> entries_;
  mutable DecodedItems decoded_{kMostDecoded};
  mutable Mutex seen_mutex_;
  mutable formats::SeenParts seen_ EBB_GUARDED_BY(seen_mutex_);
};

bool is_inside(const fs::path& target, const fs::path& root) {
  const auto [at, rest] = std::mismatch(root.begin(), root.end(), target.begin(), target.end());
  return at == root.end();
}

// Hugging Face's cache keeps files as links: models--ORG--NAME/snapshots/COMMIT/model.safetensors
// leads to models--ORG--NAME/blobs/SHA256. For a root in such a snapshot: the folder of the model.
std::optional<fs::path> cached_model_of(const fs::path& canonical_root) {
  for (fs::path at = canonical_root; at.has_relative_path(); at = at.parent_path()) {
    fs::path model = at.parent_path().parent_path();
    if (at.parent_path().filename() == "snapshots" &&
        model.filename().string().starts_with("models--"))
      return model;
  }
  return std::nullopt;
}

class Listing {
 public:
  Listing(fs::path root, std::optional<fs::path> cached_model)
      : root_(std::move(root)), cached_model_(std::move(cached_model)) {}

  Result<std::vector<Entry>> take() {
    std::error_code code;
    canonical_ = fs::canonical(root_, code);
    EBB_TRY(look_into({}, 0));
    std::ranges::sort(entries_, {}, &Entry::name);
    return std::move(entries_);
  }

 private:
  // `name`: below the root.
  Result<> look_into(const fs::path& name, int depth) {
    EBB_TRY_ASSIGN(const std::vector<std::string> found, list_directory(root_ / name, kMaxEntries));
    for (const std::string& one : found) EBB_TRY(look_at(name / one, depth));
    return {};
  }

  Result<> look_at(const fs::path& name, int depth) {
    const std::string path = (root_ / name).string();
    struct stat status{};
    if (::lstat(path.c_str(), &status) != 0) return errno_error(errno, "cannot look at " + path);
    const bool link = S_ISLNK(status.st_mode);
    if (link && leads_to_a_save_that_is_gone(path)) return {};
    if (link) EBB_TRY(follow(path, status));
    if (S_ISDIR(status.st_mode)) {
      // What it leads to lies below the root, too, and is listed there.
      if (link) return {};
      EBB_TRY(check_depth(path, depth));
      return look_into(name, depth + 1);
    }
    if (!S_ISREG(status.st_mode))
      return Error{Code::unsupported, path + " is a device, a socket or a pipe, not a file"};
    if (entries_.size() == kMaxEntries)
      return Error{Code::limit, root_.string() + " has more than 1000000 files, the limit"};
    entries_.push_back({name.generic_string(), static_cast<std::uint64_t>(status.st_size)});
    return {};
  }

  // Trainers keep such a link beside their saves, and delete old ones.
  static bool leads_to_a_save_that_is_gone(const fs::path& path) {
    std::string name = path.filename().string();
    std::ranges::transform(name, name.begin(), [](unsigned char c) { return std::tolower(c); });
    std::error_code code;
    return name.starts_with("latest") && fs::status(path, code).type() == fs::file_type::not_found;
  }

  static Result<> check_depth(const std::string& path, int depth) {
    if (depth + 1 < kMaxDepth) return {};
    return Error{Code::limit, path + " lies more than 8 directories deep, the limit"};
  }

  Result<> follow(const std::string& path, struct stat& status) const {
    std::error_code code;
    const fs::path target = fs::canonical(path, code);
    if (code) return errno_error(code.value(), "cannot follow the symbolic link " + path);
    const bool blob = cached_model_ && target.parent_path() == *cached_model_ / "blobs";
    if (!blob && !is_inside(target, canonical_))
      return Error{Code::unsupported,
                   path + " is a symbolic link that leads outside, to " + target.string(),
                   "cp -rL " + root_.string() + " COPY"};
    if (::stat(path.c_str(), &status) != 0) return errno_error(errno, "cannot look at " + path);
    return {};
  }

  fs::path root_;
  std::optional<fs::path> cached_model_;
  fs::path canonical_;
  std::vector<Entry> entries_;
};

}  // namespace

Result<std::shared_ptr<const formats::SourceTree>> open_tree(const fs::path& path) {
  struct stat status{};
  if (::stat(path.c_str(), &status) != 0) return errno_error(errno, "cannot open " + path.string());
  const bool single = S_ISREG(status.st_mode);
  if (!single && !S_ISDIR(status.st_mode))
    return Error{Code::unsupported, path.string() + " is neither a file nor a directory"};
  std::error_code code;
  // A single file may be a link, as the root may: its directory is where it leads.
  const fs::path real = single ? fs::canonical(path, code) : path;
  if (code) return errno_error(code.value(), "cannot open " + path.string());
  fs::path directory = single ? real.parent_path() : real;
  fs::path inside;
  std::vector<Entry> entries;
  if (single) {
    entries = {{path.filename().string(), static_cast<std::uint64_t>(status.st_size)}};
  } else {
    const fs::path canonical = fs::canonical(path, code);
    if (code) return errno_error(code.value(), "cannot open " + path.string());
    const std::optional<fs::path> model = cached_model_of(canonical);
    EBB_TRY_ASSIGN(entries, Listing(path, model).take());
    if (model) inside = canonical.lexically_relative(*model) / "";
    if (model) directory = *model;
  }
  Descriptor opened(::open(directory.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
  if (!opened) return errno_error(errno, "cannot open " + directory.string());
  auto files = std::make_shared<Files>();
  files->root = path.string();
  files->below = single ? (path.parent_path() / "").string() : (path / "").string();
  files->inside = inside.string();
  files->target = single ? real.filename().string() : "";
  files->directory = std::move(opened);
  return std::shared_ptr<const formats::SourceTree>(
      std::make_shared<FileTree>(std::move(files), std::move(entries)));
}

}  // namespace ebb::libswap
