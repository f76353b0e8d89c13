// The data operations through io_uring. One ring, made disabled and enabled on the thread that
// first submits: SINGLE_ISSUER rings belong to one thread. wake() writes an eventfd that the ring
// reads. Memory that is kept ready is registered with the ring: the kernel looks its pages up once,
// not for every operation.
#include <liburing.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <fstream>
#include <utility>

#include "ebb/formats/core/check.h"
#include "ebb/libswap/sys/errno_error.h"
#include "ebb/libswap/sys/posix_backend.h"

namespace ebb::libswap {
namespace {

constexpr unsigned kEntries = 256;
constexpr std::uint64_t kWakeTag = ~std::uint64_t{0};
constexpr unsigned kSlices = 64;                              // of registered memory
constexpr std::uint64_t kMostSlice = std::uint64_t{1} << 30;  // the kernel's limit

// Best first. DEFER_TASKRUN is Linux 6.1, SINGLE_ISSUER 6.0, COOP_TASKRUN 5.19.
constexpr std::array<unsigned, 3> kFlagChoices = {
    IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
    IORING_SETUP_COOP_TASKRUN,
    0,
};

class Ring {
 public:
  Ring() = default;
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  ~Ring() {
    if (open_) ::io_uring_queue_exit(&ring_);
  }

  // 0 or -errno. The ring accepts operations after enable().
  int open(unsigned entries) {
    int error = -EINVAL;
    for (const unsigned flags : kFlagChoices) {
      error = ::io_uring_queue_init(entries, &ring_, flags | IORING_SETUP_R_DISABLED);
      if (error != -EINVAL) break;
    }
    if (error != 0) return error;
    open_ = true;
    return ::io_uring_ring_dontfork(&ring_);
  }
  // By hand, because Debian 12's shared liburing does not export io_uring_enable_rings.
  int enable() {
    const long answer =
        ::syscall(SYS_io_uring_register, ring_.ring_fd, IORING_REGISTER_ENABLE_RINGS, nullptr, 0);
    return answer < 0 ? -errno : 0;
  }
  io_uring* get() { return &ring_; }

 private:
  io_uring ring_{};
  bool open_ = false;
};

class UringBackend : public PosixBackend {
 public:
  Result<> open_ring();

  std::string_view name() const override { return "io_uring"; }
  std::size_t capacity() const override { return kEntries - 1; }  // one is the wake-up's
  void submit(std::span<const RawOp> ops) override;
  std::size_t wait(std::span<RawDone> done) override;
  void wake() override;
  Result<> register_buffers(std::span<std::byte> memory, std::uint64_t unit) override;
  void unregister_buffers(std::span<std::byte> memory) override;

 private:
  using Slice = std::span<std::byte>;
  int set_slice(unsigned index, Slice slice);
  // Of the registered memory that holds all of the operation's.
  std::optional<int> slice_of(const RawOp& op) const;
  void prepare(const RawOp& op);
  void arm_wake();
  void start_once();
  io_uring_sqe* entry();
  int enter(unsigned wait_for);
  std::size_t reap(std::span<RawDone> done);

  Ring ring_;
  Descriptor event_;
  std::uint64_t event_value_ = 0;  // where the ring's read of the eventfd lands
  std::vector<RawDone> refused_;   // never reached the ring
  std::vector<Slice> slices_;      // of registered memory; empty: none there
  int broken_ = 0;                 // errno that every operation is answered with
  bool started_ = false;
};

Result<> UringBackend::open_ring() {
  if (const int error = ring_.open(kEntries); error != 0)
    return errno_error(-error, "cannot open an io_uring");
  event_ = Descriptor(::eventfd(0, EFD_CLOEXEC));
  if (!event_) return errno_error(errno, "cannot make an eventfd");
  refused_.reserve(capacity());
  return {};
}

void UringBackend::start_once() {
  if (started_) return;
  started_ = true;
  broken_ = -ring_.enable();
  if (broken_ == 0) arm_wake();
}

io_uring_sqe* UringBackend::entry() {
  io_uring_sqe* sqe = ::io_uring_get_sqe(ring_.get());
  EBB_CHECK(sqe != nullptr);  // operations in flight never exceed the capacity
  return sqe;
}

void UringBackend::arm_wake() {
  io_uring_sqe* sqe = entry();
  ::io_uring_prep_read(sqe, event_.get(), &event_value_, sizeof(event_value_), 0);
  ::io_uring_sqe_set_data64(sqe, kWakeTag);
}

void UringBackend::prepare(const RawOp& op) {
  const std::shared_ptr<const OpenFile> file = find(op.file);
  if (file == nullptr || broken_ != 0) {
    refused_.push_back({op.tag, broken_ != 0 ? -broken_ : -EBADF});
    return;
  }
  io_uring_sqe* sqe = entry();
  const int descriptor = file->descriptor.get();
  const std::optional<int> slice = slice_of(op);
  if (op.kind == RawOp::Kind::sync_data)
    ::io_uring_prep_fsync(sqe, descriptor, IORING_FSYNC_DATASYNC);
  else if (op.kind == RawOp::Kind::read && slice)
    ::io_uring_prep_read_fixed(sqe, descriptor, op.data, op.size, op.offset, *slice);
  else if (op.kind == RawOp::Kind::read)
    ::io_uring_prep_read(sqe, descriptor, op.data, op.size, op.offset);
  else if (slice)
    ::io_uring_prep_write_fixed(sqe, descriptor, op.data, op.size, op.offset, *slice);
  else
    ::io_uring_prep_write(sqe, descriptor, op.data, op.size, op.offset);
  ::io_uring_sqe_set_data64(sqe, op.tag);
}

std::optional<int> UringBackend::slice_of(const RawOp& op) const {
  for (std::size_t i = 0; i < slices_.size(); ++i)
    if (op.data >= slices_[i].data() && op.data + op.size <= slices_[i].data() + slices_[i].size())
      return static_cast<int>(i);
  return std::nullopt;
}

// 0 or -errno.
int UringBackend::set_slice(unsigned index, Slice slice) {
  const iovec memory{slice.data(), slice.size()};
  const __u64 tag = 0;
  const int set = ::io_uring_register_buffers_update_tag(ring_.get(), index, &memory, &tag, 1);
  if (set < 0) return set;
  slices_[index] = slice;
  return 0;
}

Result<> UringBackend::register_buffers(std::span<std::byte> memory, std::uint64_t unit) {
  start_once();
  int error = -broken_;
  if (error == 0 && slices_.empty()) {
    error = ::io_uring_register_buffers_sparse(ring_.get(), kSlices);  // Linux 5.19
    if (error == 0) slices_.resize(kSlices);
  }
  const std::uint64_t whole = kMostSlice / unit * unit;
  const std::uint64_t most = whole > 0 ? whole : kMostSlice;
  for (Slice rest = memory; error == 0 && !rest.empty();) {
    const auto free = std::ranges::find_if(slices_, [](const Slice& one) { return one.empty(); });
    if (free == slices_.end()) break;  // 64 GiB are: the rest goes the usual way
    const Slice slice = rest.first(std::min<std::uint64_t>(most, rest.size()));
    error = set_slice(static_cast<unsigned>(free - slices_.begin()), slice);
    rest = rest.subspan(slice.size());
  }
  if (error == 0) return {};
  unregister_buffers(memory);
  return errno_error(-error, compose("cannot register {} bytes with io_uring", memory.size()));
}

void UringBackend::unregister_buffers(std::span<std::byte> memory) {
  for (unsigned i = 0; i < slices_.size(); ++i) {
    const bool inside =
        slices_[i].data() >= memory.data() && slices_[i].data() < memory.data() + memory.size();
    if (!inside) continue;
    // The kernel holds on to the pages otherwise, and nobody reads or writes them any more.
    static_cast<void>(set_slice(i, {}));
    slices_[i] = {};
  }
}

void UringBackend::submit(std::span<const RawOp> ops) {
  start_once();
  for (const RawOp& op : ops) prepare(op);
  // What the kernel does not take now stays prepared for wait().
  if (broken_ == 0) static_cast<void>(enter(0));
}

// Gives every prepared entry to the kernel and waits for `wait_for` completions. The kernel may
// take fewer than it was offered, and answers EBUSY or EAGAIN while completions wait to be reaped:
// what it did not take stays prepared and goes with the next call.
int UringBackend::enter(unsigned wait_for) {
  while (true) {
    const int taken = ::io_uring_submit_and_wait(ring_.get(), wait_for);
    if (taken == -EINTR) continue;
    if (taken < 0 || ::io_uring_sq_ready(ring_.get()) == 0) return taken;
    if (::io_uring_cq_ready(ring_.get()) > 0) return taken;
  }
}

std::size_t UringBackend::reap(std::span<RawDone> done) {
  std::size_t count = 0;
  while (count < done.size() && !refused_.empty()) {
    done[count++] = refused_.back();
    refused_.pop_back();
  }
  io_uring_cqe* cqe = nullptr;
  while (count < done.size() && ::io_uring_cq_ready(ring_.get()) > 0 &&
         ::io_uring_peek_cqe(ring_.get(), &cqe) == 0) {
    const std::uint64_t tag = ::io_uring_cqe_get_data64(cqe);
    if (tag == kWakeTag) {
      arm_wake();
    } else {
      done[count++] = {tag, cqe->res};
    }
    ::io_uring_cqe_seen(ring_.get(), cqe);
  }
  return count;
}

std::size_t UringBackend::wait(std::span<RawDone> done) {
  start_once();
  if (refused_.empty() && broken_ == 0) {
    const int entered = enter(1);
    // Anything else means that operations are out whose buffers nobody may ever free.
    EBB_CHECK(entered >= 0 || entered == -EBUSY || entered == -EAGAIN || entered == -ENOMEM);
  }
  return reap(done);
}

void UringBackend::wake() {
  const std::uint64_t one = 1;
  // Refused only when the counter is full, and then a wake-up is pending.
  static_cast<void>(::write(event_.get(), &one, sizeof(one)));
}

std::string blocked_because() {
  std::ifstream setting("/proc/sys/kernel/io_uring_disabled");
  std::string value;
  if (setting >> value && value != "0")
    return "io_uring is blocked: kernel.io_uring_disabled=" + value;
  return "io_uring is blocked by seccomp (the default in containers)";
}

Error refusal(int error) {
  if (error == ENOMEM)
    return {Code::unsupported, "no locked memory is left for an io_uring", "ulimit -l"};
  const bool blocked = error == EPERM || error == EACCES;
  return {Code::unsupported,
          blocked           ? blocked_because()
          : error == ENOSYS ? "this kernel has no io_uring"
                            : "io_uring does not work: " + errno_text(error),
          "sysctl kernel.io_uring_disabled"};
}

// One real read of one byte through a pipe: a ring may open and still refuse every operation.
int try_ring() {
  Ring ring;
  if (const int error = ring.open(4); error != 0) return -error;
  if (const int error = ring.enable(); error != 0) return -error;
  std::array<int, 2> ends{};
  if (::pipe2(ends.data(), O_CLOEXEC) != 0) return errno;
  const Descriptor out(ends[0]);
  const Descriptor in(ends[1]);
  char byte = 'e';
  if (::write(in.get(), &byte, 1) != 1) return EIO;
  byte = '\0';
  ::io_uring_prep_read(::io_uring_get_sqe(ring.get()), out.get(), &byte, 1, 0);
  const int submitted = ::io_uring_submit_and_wait(ring.get(), 1);
  if (submitted != 1) return submitted < 0 ? -submitted : EIO;
  io_uring_cqe* cqe = nullptr;
  if (const int error = ::io_uring_peek_cqe(ring.get(), &cqe); error != 0) return -error;
  if (cqe->res != 1) return cqe->res < 0 ? -cqe->res : EIO;
  return byte == 'e' ? 0 : EIO;
}

}  // namespace

Result<std::unique_ptr<IoBackend>> make_uring_backend() {
  if (const int error = try_ring(); error != 0) return refusal(error);
  auto backend = std::make_unique<UringBackend>();
  EBB_TRY(backend->open_ring());
  return std::unique_ptr<IoBackend>(std::move(backend));
}

}  // namespace ebb::libswap
