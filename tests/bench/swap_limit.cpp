#include "tests/bench/swap_limit.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>

#include "ebb/formats/core/units.h"
#include "ebb/libswap/sys/errno_error.h"
#include "ebb/libswap/sys/process.h"

namespace ebb::bench {
namespace {

constexpr std::uint64_t kMemory = 64 * formats::MiB;  // of each direction
constexpr unsigned kEntries = 512;

}  // namespace

Result<std::unique_ptr<PlainDisk>> PlainDisk::make(const std::filesystem::path& directory,
                                                   std::uint64_t bytes) {
  std::unique_ptr<PlainDisk> disk(new PlainDisk());
  EBB_TRY(disk->open(directory, bytes));
  // Fresh extents cost more: written once before anything is measured.
  EBB_TRY(disk->move({{.writes = true, .next = 0, .end = 2 * disk->bytes_}}, {}));
  return disk;
}

PlainDisk::~PlainDisk() {
  if (ring_open_) ::io_uring_queue_exit(&ring_);
}

Result<> PlainDisk::open(const std::filesystem::path& directory, std::uint64_t bytes) {
  bytes_ = formats::align_up(bytes, kMemory);
  const std::string path = (directory / "plain").string();
  const int flags = O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC;
  file_ = libswap::Descriptor(::open(path.c_str(), flags | O_DIRECT, 0600));
  if (!file_ && errno == EINVAL) file_ = libswap::Descriptor(::open(path.c_str(), flags, 0600));
  if (!file_) return libswap::errno_error(errno, "cannot make " + path);
  ::unlink(path.c_str());
  if (::fallocate(file_.get(), 0, 0, static_cast<off_t>(2 * bytes_)) != 0)
    return libswap::errno_error(errno, compose("cannot reserve {} bytes in {}", 2 * bytes_, path));
  const int error = ::io_uring_queue_init(kEntries, &ring_, 0);
  if (error != 0) return libswap::errno_error(-error, "cannot open an io_uring");
  ring_open_ = true;
  EBB_TRY_ASSIGN(in_, libswap::AlignedBuffer::allocate(kMemory));
  EBB_TRY_ASSIGN(out_, libswap::AlignedBuffer::allocate(kMemory));
  std::uint64_t noise = 1;
  for (std::byte& byte : out_.bytes())
    byte = static_cast<std::byte>((noise = noise * 6364136223846793005u + 1) >> 56);
  std::ranges::copy(out_.bytes(), in_.bytes().begin());
  return {};
}

void PlainDisk::send(Lane& lane, std::uint64_t number, const Mix& mix) {
  if (lane.place + mix.block > kMemory) lane.place = 0;
  std::byte* const memory = (lane.writes ? out_ : in_).bytes().data() + lane.place;
  io_uring_sqe* const entry = ::io_uring_get_sqe(&ring_);
  if (lane.writes)
    ::io_uring_prep_write(entry, file_.get(), memory, mix.block, lane.next);
  else
    ::io_uring_prep_read(entry, file_.get(), memory, mix.block, lane.next);
  ::io_uring_sqe_set_data64(entry, number);
  lane.next += mix.block;
  lane.place += mix.block;
  ++lane.in_flight;
}

Result<> PlainDisk::move(std::vector<Lane> lanes, const Mix& mix) {
  std::uint32_t in_flight = 0;
  const auto fill = [&] {
    for (std::uint64_t i = 0; i < lanes.size(); ++i)
      for (; lanes[i].in_flight < mix.depth && lanes[i].next < lanes[i].end; ++in_flight)
        send(lanes[i], i, mix);
  };
  Result<> result;
  for (fill(); in_flight > 0;) {
    const int taken = ::io_uring_submit_and_wait(&ring_, 1);
    if (taken < 0 && taken != -EINTR) return libswap::errno_error(-taken, "io_uring");
    io_uring_cqe* done = nullptr;
    while (::io_uring_cq_ready(&ring_) > 0 && ::io_uring_peek_cqe(&ring_, &done) == 0) {
      if (result && done->res < 0) result = libswap::errno_error(-done->res, "a plain transfer");
      if (result && static_cast<std::uint32_t>(done->res) < mix.block)
        result = Error{Code::io, "a plain transfer was short"};
      --lanes[::io_uring_cqe_get_data64(done)].in_flight;
      --in_flight;
      ::io_uring_cqe_seen(&ring_, done);
    }
    if (result) fill();
  }
  return result;
}

Result<double> PlainDisk::run(const Mix& mix) {
  const auto begin = std::chrono::steady_clock::now();
  const std::uint64_t group = mix.order == Mix::Order::together ? bytes_ : kMemory;
  for (std::uint64_t at = 0; at < bytes_; at += group) {
    const Lane read{.next = at, .end = at + group};
    const Lane write{.writes = true, .next = bytes_ + at, .end = bytes_ + at + group};
    if (mix.order == Mix::Order::together) {
      EBB_TRY(move({read, write}, mix));
    } else {
      EBB_TRY(move({read}, mix));
      EBB_TRY(move({write}, mix));
    }
  }
  return libswap::seconds_since(begin);
}

}  // namespace ebb::bench
