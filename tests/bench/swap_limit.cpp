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

Result<std::unique_ptr<PlainDisk>> PlainDisk::make() {
  std::unique_ptr<PlainDisk> disk(new PlainDisk());
  const int error = ::io_uring_queue_init(kEntries, &disk->ring_, 0);
  if (error != 0) return libswap::errno_error(-error, "cannot open an io_uring");
  disk->ring_open_ = true;
  EBB_TRY_ASSIGN(disk->in_, libswap::AlignedBuffer::allocate(kMemory));
  EBB_TRY_ASSIGN(disk->out_, libswap::AlignedBuffer::allocate(kMemory));
  std::ranges::fill(disk->in_.bytes(), std::byte{0});  // the pages are there
  return disk;
}

PlainDisk::~PlainDisk() {
  if (ring_open_) ::io_uring_queue_exit(&ring_);
}

void PlainDisk::send(const Places& places, Lane& lane, std::uint64_t number, std::uint32_t block) {
  std::byte* const memory = (lane.writes ? out_ : in_).bytes().data() + lane.next % kMemory;
  const std::uint64_t bytes = places.content.size();
  const auto& starts = lane.writes ? places.writes : places.reads;
  const std::uint64_t offset = starts[lane.next / bytes] + lane.next % bytes;
  io_uring_sqe* const entry = ::io_uring_get_sqe(&ring_);
  if (lane.writes)
    ::io_uring_prep_write(entry, file_.get(), memory, block, offset);
  else
    ::io_uring_prep_read(entry, file_.get(), memory, block, offset);
  ::io_uring_sqe_set_data64(entry, number);
  lane.next += block;
  ++lane.in_flight;
}

Result<> PlainDisk::move(const Places& places, std::vector<Lane> lanes, const Mix& mix) {
  const auto block =
      static_cast<std::uint32_t>(std::min<std::uint64_t>(mix.block, places.content.size()));
  std::uint32_t in_flight = 0;
  const auto fill = [&] {
    for (std::uint64_t i = 0; i < lanes.size(); ++i)
      for (; lanes[i].in_flight < mix.depth && lanes[i].next < lanes[i].end; ++in_flight)
        send(places, lanes[i], i, block);
  };
  Result<> result;
  for (fill(); in_flight > 0;) {
    const int taken = ::io_uring_submit_and_wait(&ring_, 1);
    if (taken < 0 && taken != -EINTR) return libswap::errno_error(-taken, "io_uring");
    io_uring_cqe* done = nullptr;
    while (::io_uring_cq_ready(&ring_) > 0 && ::io_uring_peek_cqe(&ring_, &done) == 0) {
      if (result && done->res < 0) result = libswap::errno_error(-done->res, "a plain transfer");
      if (result && static_cast<std::uint32_t>(done->res) < block)
        result = Error{Code::io, "a plain transfer was short"};
      --lanes[::io_uring_cqe_get_data64(done)].in_flight;
      --in_flight;
      ::io_uring_cqe_seen(&ring_, done);
    }
    if (result) fill();
  }
  return result;
}

Result<double> PlainDisk::run(const Places& places, const Mix& mix) {
  const int flags = O_RDWR | O_CLOEXEC;
  file_ = libswap::Descriptor(::open(places.file.c_str(), flags | O_DIRECT));
  if (!file_ && errno == EINVAL) file_ = libswap::Descriptor(::open(places.file.c_str(), flags));
  if (!file_) return libswap::errno_error(errno, "cannot open " + places.file.string());
  for (std::uint64_t at = 0; at < kMemory; at += places.content.size())
    std::ranges::copy(places.content, out_.bytes().data() + at);
  const std::uint64_t all = places.reads.size() * places.content.size();
  const std::uint64_t group = mix.order == Mix::Order::together ? all : kMemory;
  const auto begin = std::chrono::steady_clock::now();
  for (std::uint64_t at = 0; at < all; at += group) {
    const Lane read{.next = at, .end = std::min(at + group, all)};
    const Lane write{.writes = true, .next = read.next, .end = read.end};
    if (mix.order == Mix::Order::together) {
      EBB_TRY(move(places, {read, write}, mix));
    } else {
      EBB_TRY(move(places, {read}, mix));
      EBB_TRY(move(places, {write}, mix));
    }
  }
  return libswap::seconds_since(begin);
}

}  // namespace ebb::bench
