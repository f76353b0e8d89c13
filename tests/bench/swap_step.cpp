#include "tests/bench/swap_step.h"

#include <sys/resource.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <fstream>
#include <numeric>
#include <set>
#include <thread>

#include "ebb/formats/core/units.h"
#include "ebb/formats/native/store_files.h"
#include "ebb/libswap/sys/process.h"

// The linker sends every call of ISA-L's CRC32C through here (--wrap).
extern "C" unsigned int __real_crc32_iscsi(unsigned char* data, int size, unsigned int state);

namespace ebb::bench {
namespace {

using libswap::Stream;
using libswap::TileCache;
using libswap::TileVisit;

constexpr std::uint64_t kMostJobElems = 128u << 10;  // of one job of the pool
constexpr float kFirstParam = 1.0f, kFirstMomentum = 0.5f;

std::atomic<Checksums>& checksums() {
  static std::atomic<Checksums> checksums = Checksums::on;
  return checksums;
}

void update(float* param, float* momentum, std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) {
    momentum[i] = 0.9f * momentum[i] + 0.01f * param[i];
    param[i] -= 0.1f * momentum[i];
  }
}

// Work on a tile in jobs; `parts`: what each has to do of both halves.
libswap::Chain in_parts(std::span<std::byte> tile,
                        void (*work)(float* param, float* momentum, std::uint64_t count)) {
  auto* const param = reinterpret_cast<float*>(tile.data());
  const std::uint64_t elems = tile.size() / sizeof(float) / 2;
  return {{formats::div_ceil(elems, kMostJobElems), [=](std::size_t job) {
             const std::uint64_t first = job * kMostJobElems;
             work(param + first, param + elems + first, std::min(kMostJobElems, elems - first));
           }}};
}

std::set<std::string> threads_of_this_process() {
  std::set<std::string> threads;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task"))
    threads.insert(entry.path().string());
  return threads;
}

double seconds(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
}

}  // namespace

void set_checksums(Checksums wanted) { checksums() = wanted; }

Result<std::unique_ptr<PagedStep>> PagedStep::make(const Config& config) {
  std::unique_ptr<PagedStep> step(new PagedStep(config));
  EBB_TRY(step->open());
  return step;
}

PagedStep::~PagedStep() = default;

Result<> PagedStep::open() {
  EBB_TRY_ASSIGN(pool_, libswap::Pool::start(std::max(1u, std::thread::hardware_concurrency())));
  const auto before = threads_of_this_process();
  EBB_TRY_ASSIGN(auto chosen, libswap::open_backend(config_.backend));
  EBB_TRY_ASSIGN(io_, libswap::IoQueue::start(std::move(chosen.backend), config_.queue));
  for (const std::string& thread : threads_of_this_process())
    if (!before.contains(thread)) io_thread_ = thread;  // the last: the queue's own
  const std::uint64_t tiles = std::max<std::uint64_t>(1, config_.state_bytes / config_.tile_bytes);
  libswap::Store::Config store{
      .directory = config_.directory,
      .tile_bytes = config_.tile_bytes,
      .block_bytes = std::min<std::uint64_t>(config_.tile_bytes, 256u << 10),
      .slots = 2,
      .tiles = tiles,
      .manifest_bytes = formats::align_up(tiles * 256 + (64u << 10), 4096)};
  store.uuid[0] = std::byte{1};
  EBB_TRY_ASSIGN(store_, libswap::Store::create(*io_, store));
  libswap::Alone alone;
  EBB_TRY(store_->recover(alone));
  std::vector<std::uint64_t> order(tiles);
  std::iota(order.begin(), order.end(), std::uint64_t{0});
  libswap::TileBudget budget;
  budget.resident = static_cast<std::uint64_t>(config_.resident * static_cast<double>(tiles));
  budget.frames = std::clamp<std::uint64_t>(config_.frame_bytes / config_.tile_bytes, 1, tiles);
  paged_bytes_ = (tiles - budget.resident) * config_.tile_bytes;
  EBB_TRY_ASSIGN(cache_, TileCache::open(*io_, *store_, *pool_,
                                         libswap::Homes::spread(budget, order), nullptr, nullptr));
  set_checksums(config_.checksums);
  const std::uint64_t written = io_->stats().written_bytes;
  EBB_TRY(visit(TileCache::Use::create, Work::none));
  wait_until_written(written + paged_bytes_);
  return {};
}

Result<> PagedStep::visit(TileCache::Use use, Work work) {
  std::vector<TileVisit> visits;
  for (std::uint64_t tile = 0; tile < store_->superblock().tiles; ++tile)
    visits.push_back({tile, use});
  Stream stream(*cache_, std::move(visits), Stream::Repeats::no);
  stream.begin(++step_);
  while (!stream.ended()) {
    EBB_TRY_ASSIGN(const Stream::Lease lease, stream.take());
    if (use == TileCache::Use::create) {
      float* const param = lease.buffer.as(DType::f32).floats().data();
      const std::uint64_t elems = lease.buffer.size() / sizeof(float) / 2;
      std::fill_n(param, elems, kFirstParam);
      std::fill_n(param + elems, elems, kFirstMomentum);
    }
    stream.give_back(lease, work == Work::update
                                ? pool_->begin(in_parts(lease.buffer.bytes(), update))
                                : libswap::Event());
  }
  return cache_->settle();
}

// The pager answers when the queue has the last tile; the counters say when the disk has.
void PagedStep::wait_until_written(std::uint64_t bytes) const {
  while (io_->stats().written_bytes < bytes) libswap::sleep_for_seconds(1e-4);
}

double PagedStep::io_thread_seconds() const {
  std::ifstream file(io_thread_ + "/schedstat");
  double nanoseconds = 0;
  return file >> nanoseconds ? nanoseconds / 1e9 : 0;
}

Result<StepTimes> PagedStep::step(Work work) {
  set_checksums(config_.checksums);
  const libswap::IoStats before = io_->stats();
  rusage used{}, now{};
  ::getrusage(RUSAGE_SELF, &used);
  const double io_thread = io_thread_seconds();
  const auto begin = std::chrono::steady_clock::now();
  EBB_TRY(visit(TileCache::Use::modify, work));
  wait_until_written(before.written_bytes + paged_bytes_);
  StepTimes times{.seconds = libswap::seconds_since(begin)};
  ::getrusage(RUSAGE_SELF, &now);
  if (work == Work::update) ++updates_;
  times.user_s = seconds(now.ru_utime) - seconds(used.ru_utime);
  times.system_s = seconds(now.ru_stime) - seconds(used.ru_stime);
  times.io_thread_s = io_thread_seconds() - io_thread;
  const libswap::IoStats after = io_->stats();
  times.read_bytes = after.read_bytes - before.read_bytes;
  times.written_bytes = after.written_bytes - before.written_bytes;
  return times;
}

std::pair<float, float> PagedStep::state() const {
  float param = kFirstParam, momentum = kFirstMomentum;
  for (std::uint64_t i = 0; i < updates_; ++i) update(&param, &momentum, 1);
  return {param, momentum};
}

Result<Places> PagedStep::places() const {
  const formats::native::Superblock& superblock = store_->superblock();
  const Rank rank = superblock.rank;
  Places places{.file = config_.directory /
                        formats::native::rank_directory(rank, superblock.world) /
                        formats::native::data_file(superblock.store, rank)};
  for (std::uint64_t tile = 0; tile < superblock.tiles; ++tile) {
    EBB_TRY_ASSIGN(const libswap::Store::Write write, store_->begin_write(tile, step_ + 1));
    places.reads.push_back(store_->read_place(tile).offset);
    places.writes.push_back(write.place.offset);
  }
  const auto [param, momentum] = state();
  std::vector<float> values(superblock.tile_bytes / sizeof(float), param);
  std::fill_n(values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2), values.size() / 2,
              momentum);
  const auto bytes = std::as_bytes(std::span(values));
  places.content.assign(bytes.begin(), bytes.end());
  return places;
}

Result<> PagedStep::compare() {
  set_checksums(config_.checksums);
  const auto [param, momentum] = state();
  std::vector<TileVisit> visits;
  for (std::uint64_t tile = 0; tile < store_->superblock().tiles; ++tile)
    visits.push_back({tile, TileCache::Use::read});
  Stream stream(*cache_, std::move(visits), Stream::Repeats::no);
  stream.begin(step_);
  while (!stream.ended()) {
    EBB_TRY_ASSIGN(const Stream::Lease lease, stream.take());
    const std::span<const float> found = lease.buffer.as(DType::f32).floats();
    const std::size_t half = found.size() / 2;
    const bool same =
        std::ranges::all_of(found.first(half), [&](float value) { return value == param; }) &&
        std::ranges::all_of(found.subspan(half), [&](float value) { return value == momentum; });
    stream.give_back(lease, {});
    if (!same)
      return Error{Code::corrupt,
                   compose("tile {} is not what {} steps make of it", lease.tile, updates_)};
  }
  return {};
}

}  // namespace ebb::bench

extern "C" unsigned int __wrap_crc32_iscsi(unsigned char* data, int size, unsigned int state) {
  const bool on = ebb::bench::checksums() == ebb::bench::Checksums::on;
  return on ? __real_crc32_iscsi(data, size, state) : 0;
}
