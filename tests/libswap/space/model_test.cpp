// Random schedules of everything a SwapSpace does, on one to three ranks, against a model that is
// nothing but the bytes: what was released last, and what each snapshot must hold. A life ends with
// a power loss at any moment; the next one resumes.
#include <array>
#include <map>
#include <random>
#include <thread>

#include "ebb/libmuon/comm/communicator.h"
#include "tests/libswap/space/space_rig.h"

namespace ebb::libswap::space_tests {
namespace {

using Random = std::mt19937_64;
using Bytes = std::vector<std::byte>;
using Contents = std::vector<Bytes>;  // by buffer

constexpr std::array kTypes = {DType::u8,  DType::bf16, DType::f32,    DType::f64,
                               DType::i16, DType::c128, DType::f8_e4m3};

Bytes random_bytes(Random& random, std::size_t count) {
  Bytes bytes(count);
  for (std::byte& byte : bytes) byte = std::byte(random());
  return bytes;
}

// Buffers of one to three parts; sizes from one byte to several tiles.
struct Job {
  std::uint32_t world = 1;
  std::vector<std::vector<std::vector<BufferPart>>> buffers;  // by rank
  std::vector<SwapSpaceConfig> configs;                       // by rank

  explicit Job(Random& random)
      : world(static_cast<std::uint32_t>(1 + random() % 3)), buffers(world) {
    const std::size_t count = 3 + random() % 12;
    for (std::size_t i = 0; i < count; ++i) {
      std::vector<std::vector<BufferPart>> parts(world);
      for (std::size_t part = 0; part <= random() % 3; ++part) add_part(random, i, part, parts);
      for (std::uint32_t rank = 0; rank < world; ++rank) buffers[rank].push_back(parts[rank]);
    }
    for (std::uint32_t rank = 0; rank < world; ++rank)
      configs.push_back({.budget_bytes = least_frames(random, rank) * kTile,
                         .tile_bytes = kTile,
                         .slots = slots_,
                         .threads = static_cast<std::uint32_t>(1 + random() % 3)});
  }

 private:
  void add_part(Random& random, std::size_t buffer, std::size_t part,
                std::vector<std::vector<BufferPart>>& parts) {
    const DType dtype = kTypes[random() % kTypes.size()];
    const std::uint64_t most = random() % 3 == 0 ? 4 * kTile : kTile / 3;
    const std::uint64_t elems = 1 + random() % std::max<std::uint64_t>(1, most / bytes_of(dtype));
    std::vector<std::uint64_t> cuts = {0, elems};
    for (std::uint32_t rank = 1; rank < world; ++rank) cuts.push_back(random() % (elems + 1));
    std::ranges::sort(cuts);
    for (std::uint32_t rank = 0; rank < world; ++rank)
      parts[rank].push_back({"t" + std::to_string(buffer),
                             "s" + std::to_string(part),
                             dtype,
                             Shape{elems},
                             {cuts[rank], cuts[rank + 1] - cuts[rank]}});
  }
  std::uint64_t least_frames(Random& random, std::uint32_t rank) const {
    std::uint64_t most = 2, all = 0;
    for (const auto& parts : buffers[rank]) {
      std::uint64_t tiles = 1;
      for (const BufferPart& part : parts)
        tiles += formats::div_ceil(part.range.count * bytes_of(part.dtype), kTile);
      most = std::max(most, tiles);
      all += tiles;
    }
    return most + random() % (all + 3);
  }
  const std::uint32_t slots_ = 3;
};

// What all ranks did up to now.
struct History {
  explicit History(const Job& job) : snapshots(job.world), committed(job.world) {}
  std::vector<std::map<std::uint64_t, Contents>> snapshots;  // by rank, by step: begun
  std::vector<std::uint64_t> committed;                      // by rank: the last that it knows of
};

// One rank in one life.
class Actor {
 public:
  Actor(const Job& job, History& history, Ranks& ranks, SwapSpace& space, std::uint64_t seed)
      : ranks_(ranks),
        space_(space),
        history_(history),
        me_(index_of(ranks.rank())),
        parts_(job.buffers[me_]),
        random_(seed * 31 + me_) {}

  // `shared`: the same on all ranks, decides what they do together. False: the disk is gone.
  void live(Random shared, int turns) {
    for (const auto& parts : parts_) {
      const auto id = space_.register_buffer(parts);
      ASSERT_TRUE(ok(id));
      sizes_.push_back(0);
      for (const BufferPart& part : parts)
        if (part.range.count > 0)
          sizes_.back() =
              formats::align_up(sizes_.back(), 64) + part.range.count * bytes_of(part.dtype);
    }
    if (!open()) return;
    for (int turn = 0; turn < turns && !over_; ++turn) {
      for (std::uint64_t i = random_() % 12; i > 0 && !over_; --i) act();
      if (!over_) meet(shared);
    }
    held_.clear();
  }

 private:
  struct Held {
    SwapSpace::Lease lease;
    Access access;
    Bytes bytes;  // as they must be
  };

  // A life ends when the disk does.
  bool fine(bool ok, const Error* error) {
    if (ok) return true;
    over_ = true;
    EXPECT_TRUE(error->code == Code::cancelled || error->code == Code::peer ||
                error->code == Code::state)
        << text(*error);
    return false;
  }
  template <typename T>
  bool fine(const Result<T>& result) {
    return fine(result.has_value(), result ? nullptr : &result.error());
  }

  bool open() {
    Contents initial;
    Random same(7 + me_);
    for (const std::uint64_t size : sizes_) initial.push_back(random_bytes(same, size));
    // Padding between parts belongs to nobody.
    history_.snapshots[me_].try_emplace(0, initial);
    if (!fine(space_.open([&](BufferId buffer, std::span<std::byte> bytes) -> Result<> {
          std::ranges::copy(initial[index_of(buffer)], bytes.begin());
          return {};
        })))
      return false;
    const auto found = history_.snapshots[me_].find(space_.step());
    EXPECT_GE(space_.step(), history_.committed[me_]);
    EXPECT_NE(found, history_.snapshots[me_].end()) << "step " << space_.step();
    if (found == history_.snapshots[me_].end()) return false;
    now_ = found->second;
    history_.committed[me_] = space_.step();
    return true;
  }

  void act() {
    const auto buffer = static_cast<std::uint32_t>(random_() % sizes_.size());
    switch (random_() % 8) {
      case 0:
        fine(space_.prefetch(BufferId{buffer}));
        break;
      case 1:
      case 2:
        acquire(buffer, Access::read);
        break;
      case 3:
      case 4:
      case 5:
        acquire(buffer, Access::modify);
        break;
      case 6:
        if (random_() % 4 == 0) fine(space_.flush());
        break;
      default:
        release();
        break;
    }
    while (held_.size() > 3 && !over_) release();
  }

  void acquire(std::uint32_t buffer, Access access) {
    bool conflict = false;
    for (const Held& held : held_)
      conflict |= index_of(held.lease.buffer()) == buffer &&
                  (access == Access::modify || held.access == Access::modify);
    auto lease = space_.acquire(BufferId{buffer}, Tier::host, access);
    if (conflict) return expect(lease, Code::state);
    if (!lease && lease.error().code == Code::no_memory) {
      ASSERT_FALSE(held_.empty()) << text(lease.error());
      for (const Held& held : held_) {
        const std::string name = "t" + std::to_string(index_of(held.lease.buffer())) + " (";
        EXPECT_NE(lease.error().message.find(name), std::string::npos) << text(lease.error());
      }
      return;
    }
    if (!fine(lease)) return;
    ASSERT_TRUE(same(lease->bytes(), now_[buffer])) << "buffer " << buffer;
    held_.push_back({std::move(*lease), access, now_[buffer]});
    if (access == Access::modify) change(held_.back());
  }
  void expect(const Result<SwapSpace::Lease>& lease, Code code) {
    if (!lease && lease.error().code == code) return;
    if (!lease) return static_cast<void>(fine(lease));
    ADD_FAILURE() << "it was given away twice";
  }

  void change(Held& held) {
    const std::size_t size = held.bytes.size();
    if (size == 0) return;
    const std::size_t first = random_() % size;
    const Bytes fresh = random_bytes(random_, 1 + random_() % (size - first));
    std::ranges::copy(fresh, held.lease.bytes().begin() + static_cast<std::ptrdiff_t>(first));
    std::ranges::copy(fresh, held.bytes.begin() + static_cast<std::ptrdiff_t>(first));
  }

  void release() {
    if (held_.empty()) return;
    const std::size_t which = random_() % held_.size();
    Held& held = held_[which];
    const std::uint32_t buffer = index_of(held.lease.buffer());
    EXPECT_TRUE(same(held.lease.bytes(), held.bytes)) << "buffer " << buffer;
    const bool dirty = held.access == Access::modify && random_() % 4 != 0;
    if (!fine(space_.release(held.lease, dirty ? Release::dirty : Release::clean))) return;
    if (dirty) now_[buffer] = held.bytes;
    held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(which));
  }

  static bool same(std::span<const std::byte> a, std::span<const std::byte> b) {
    return std::ranges::equal(a, b);
  }

  void meet(Random& shared) {
    const std::uint64_t what = shared() % 3;
    if (what == 0) {
      if (fine(space_.poll_snapshot())) return;
    } else if (what == 1) {
      const std::uint64_t step = space_.step() + 1 + shared() % 3;
      // The disk may end in the middle of it: it counts from its beginning.
      history_.snapshots[me_][step] = now_;
      const auto begun = space_.snapshot(step);
      if (begun && !*begun) history_.snapshots[me_].erase(step);
      fine(begun);
    } else {
      if (fine(space_.wait_snapshot())) history_.committed[me_] = space_.step();
    }
  }

  Ranks& ranks_;
  SwapSpace& space_;
  History& history_;
  const std::uint32_t me_;
  const std::vector<std::vector<BufferPart>>& parts_;
  Random random_;
  std::vector<std::uint64_t> sizes_;
  Contents now_;  // what was released last
  std::vector<Held> held_;
  bool over_ = false;
};

// One process: all ranks on one disk, which dies at some operation or is left in mid-air.
void live_once(const Job& job, History& history, const std::shared_ptr<MemoryDisk>& disk,
               Random& random) {
  const auto faults = std::make_shared<FaultPlan>();
  if (random() % 2 == 0)
    faults->add({.on = FaultOn::durable, .at = random() % 1500, .kind = FaultKind::die});
  auto io = std::move(*IoQueue::start(make_fault_backend(make_memory_backend(disk), faults), {}));
  auto directory = SwapDirectory::open(*io, "/swap");
  if (!directory) return;
  const auto worlds = libmuon::make_thread_ranks(job.world);
  const std::uint64_t seed = random();
  const Random shared(random());
  const int turns = static_cast<int>(random() % 25);
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < job.world; ++rank)
    threads.emplace_back([&, rank] {
      SwapSpace space(*io, **directory, *worlds[rank], job.configs[rank]);
      Actor actor(job, history, *worlds[rank], space, seed);
      actor.live(shared, turns);
      worlds[rank]->abort();
    });
  for (std::thread& thread : threads) thread.join();
}

void run_seed(std::uint64_t seed) {
  SCOPED_TRACE("seed " + std::to_string(seed));
  Random random(seed);
  const Job job(random);
  History history(job);
  auto disk = MemoryDisk::create(1u << 28);
  for (std::uint64_t lives = 2 + random() % 4; lives > 0; --lives) {
    live_once(job, history, disk, random);
    disk = disk->after({.unsynced = PowerLoss::Unsynced::drawn, .seed = random()});
  }
}

TEST(SwapSpace, IsItsModelInEveryOrderOnEveryDiskThatDies) {
  const char* more = std::getenv("EBB_SPACE_SEEDS");
  const std::uint64_t seeds = more == nullptr ? 150 : std::strtoull(more, nullptr, 10);
  for (std::uint64_t seed = 1; seed <= seeds && !HasFailure(); ++seed) run_seed(seed);
}

}  // namespace
}  // namespace ebb::libswap::space_tests
