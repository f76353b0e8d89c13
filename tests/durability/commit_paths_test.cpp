// Every path of the commit model, driven through the real store on a disk in memory: in each state
// of the model power fails, the disk keeps each choice of what was not synced, and the real
// recovery finds what the model says. And schedules that nobody chose.
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <map>
#include <mutex>
#include <set>

#include "ebb/libswap/testing/fault_backend.h"
#include "tests/durability/disk_tree.h"
#include "tests/durability/machines.h"
#include "tests/libswap/store/commit_model.h"
#include "tests/libswap/store/store_world.h"

namespace ebb::test {
namespace {

namespace model = commit_model;
using libswap::Agreement;
using libswap::Fault;
using libswap::FaultKind;
using libswap::FaultOn;
using libswap::FaultPlan;
using libswap::IoQueue;
using libswap::MemoryDisk;
using libswap::PowerLoss;
using libswap::Store;

constexpr std::uint32_t kModelSlots = 2;

// How many operations each rank may make before power fails.
using Position = std::vector<std::uint64_t>;
// For a rank that has no more to make: it must not.
constexpr std::uint64_t kMore = 3;

// What goes wrong: which operations of which rank fail, or that it says no.
struct Trouble {
  model::Fault fault;
  std::set<std::uint64_t> failing;
};

Store::Config config_of_rank(std::uint32_t rank, std::uint32_t world) {
  Store::Config config = libswap::test_config(rank, world, kModelSlots);
  config.tiles = 1;
  return config;
}

// Who died votes no more.
class Mortal : public Agreement {
 public:
  Mortal(Agreement& living, const FaultPlan& plan) : living_(living), plan_(plan) {}
  Result<std::int64_t> agree(std::int64_t mine) override {
    if (plan_.died()) return Error{Code::cancelled, "this rank is dead"};
    return living_.agree(mine);
  }

 private:
  Agreement& living_;
  const FaultPlan& plan_;
};

struct Left {
  std::shared_ptr<MemoryDisk> disk = libswap::disk_with_swap_folder();
  std::atomic<std::uint64_t> told = 0;  // the newest generation any rank was told is committed
};

// Three generations, as the model makes them.
void make_generations(IoQueue& io, Store& store, Agreement& ranks, const Trouble& trouble,
                      Left& left) {
  const auto rank = static_cast<int>(index_of(store.superblock().rank));
  for (std::uint64_t step = 1; step <= model::kGenerations; ++step) {
    Result<> written = libswap::write_tile(io, store, 0, step);
    if (!store.can_cut()) return;
    store.cut(step);
    Result<> prepared = written ? store.prepare(libswap::test_manifest(1)) : std::move(written);
    const bool says_no = trouble.fault.kind == model::Failure::says_no &&
                         trouble.fault.rank == rank &&
                         trouble.fault.generation == static_cast<int>(step);
    if (says_no && prepared) prepared = Error{Code::io, "this rank says no"};
    const auto committed = libswap::settle(store, ranks, prepared);
    if (!committed) return;
    std::uint64_t seen = left.told;
    while (*committed && seen < step && !left.told.compare_exchange_weak(seen, step)) {
    }
  }
}

// Each rank goes as far as the position says.
void drive(const Position& position, const Trouble& trouble, Left& left) {
  const auto world = static_cast<std::uint32_t>(position.size());
  libswap::run_ranks(world, [&](std::uint32_t rank, Agreement& living) {
    const auto plan = std::make_shared<FaultPlan>();
    const auto io = libswap::start_queue(
        libswap::make_fault_backend(libswap::make_memory_backend(left.disk), plan));
    Mortal ranks(living, *plan);
    auto store = Store::create(*io, config_of_rank(rank, world));
    ASSERT_TRUE(store) << store.error().message;
    ASSERT_TRUE((*store)->recover(ranks));
    plan->die_before(plan->durable_operations() + position[rank]);
    const FaultKind kind = trouble.fault.reached ? FaultKind::done : FaultKind::fail;
    if (trouble.fault.rank == static_cast<int>(rank))
      for (const std::uint64_t at : trouble.failing)
        plan->add({.on = FaultOn::durable, .at = at, .kind = kind});
    make_generations(*io, **store, ranks, trouble, left);
  });
}

// The generation that the real recovery takes; 0: none. Whatever it takes is whole on all ranks.
std::uint64_t recover(const std::shared_ptr<MemoryDisk>& image, std::uint32_t world,
                      std::uint64_t told) {
  std::vector<std::uint64_t> found(world, 0);
  libswap::run_ranks(world, [&](std::uint32_t rank, Agreement& ranks) {
    const auto io = libswap::start_queue(image);
    auto store = Store::open(*io, config_of_rank(0, 1).directory, Rank{rank}, world);
    ASSERT_TRUE(store) << store.error().message;
    const auto recovered = (*store)->recover(ranks);
    // Where nothing was promised, some ranks may have prepared a first one and others not.
    if (!recovered) {
      EXPECT_TRUE(recovered.error().code == Code::incomplete && told == 0)
          << recovered.error().message;
      return;
    }
    if (!*recovered) return;
    found[rank] = (**recovered).generation;
    libswap::AlignedBuffer read = *libswap::AlignedBuffer::allocate(libswap::kTestTile);
    ByteVector wanted(libswap::kTestTile);
    const Store::Place place = (*store)->read_place(0);
    EXPECT_TRUE(io->read(place.file, place.offset, read.bytes()));
    EXPECT_TRUE((*store)->verify(0, read.bytes()));
    libswap::fill_tile(rank, 0, (**recovered).step, wanted);
    EXPECT_TRUE(std::ranges::equal(read.bytes(), wanted)) << "bytes of another step";
  });
  for (const std::uint64_t one : found) EXPECT_EQ(one, found[0]) << "ranks recover apart";
  EXPECT_GE(found[0], told) << "a committed generation is gone";
  return found[0];
}

std::string content_of(const std::shared_ptr<MemoryDisk>& disk) {
  const auto io = libswap::start_queue(disk);
  const auto tree = tree_on_disk(*io, "/swap");
  EXPECT_TRUE(tree);
  std::string all;
  for (const auto& entry : (*tree)->entries()) {
    const ByteVector& bytes = (*tree)->bytes_of(entry.name);
    all.append(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  }
  return all;
}

// Recovers each disk once, however many paths lead to it.
class Recoveries {
 public:
  explicit Recoveries(std::uint32_t world) : world_(world) {}

  std::uint64_t of(const std::shared_ptr<MemoryDisk>& image, std::uint64_t told) {
    ++images_;
    const std::size_t key = std::hash<std::string>()(content_of(image));
    {
      const std::lock_guard lock(mutex_);
      const auto found = known_.find(key);
      if (found != known_.end()) {
        EXPECT_GE(found->second, told) << "a committed generation is gone";
        return found->second;
      }
    }
    const std::uint64_t generation = recover(image, world_, told);
    const std::lock_guard lock(mutex_);
    known_[key] = generation;
    return generation;
  }
  std::uint64_t images() const { return images_; }
  std::uint64_t distinct() const { return known_.size(); }

 private:
  const std::uint32_t world_;
  std::atomic<std::uint64_t> images_ = 0;
  std::mutex mutex_;
  std::map<std::size_t, std::uint64_t> known_;
};

struct Path {
  Trouble trouble;
  Position position;
  std::set<std::uint8_t> outcomes;  // that the model finds there
};

// All states of the model, by what each rank has done.
std::vector<Path> paths_of(int ranks, const model::Fault& fault, std::uint64_t& images) {
  model::Model searched(ranks, model::Protocol::as_written, fault);
  std::map<Position, std::set<std::uint8_t>> outcomes;
  searched.visit = [&](const model::State& state, const std::set<std::uint8_t>& found) {
    Position position;
    for (const auto& rank : state.ranks) {
      const bool at_its_end = rank.pc == model::done || rank.pc == model::stopped;
      position.push_back(rank.operations + (at_its_end ? kMore : 0));
    }
    outcomes[position].insert(found.begin(), found.end());
  };
  searched.search();
  images += searched.images;
  std::vector<Path> paths;
  for (auto& [position, found] : outcomes)
    paths.push_back({{fault, searched.failing}, position, std::move(found)});
  return paths;
}

void walk(const Path& path, Recoveries& recoveries) {
  Left left;
  drive(path.position, path.trouble, left);
  std::set<std::uint8_t> found;
  const std::uint64_t choices = left.disk->choices();
  for (std::uint64_t choice = 0; choice < choices; ++choice)
    found.insert(static_cast<std::uint8_t>(
        recoveries.of(left.disk->after({PowerLoss::Unsynced::numbered, choice}), left.told)));
  // A sync that was said to have failed and had not leaves less open than one that did nothing.
  const model::Fault& fault = path.trouble.fault;
  const bool synced = fault.reached && (fault.kind == model::Failure::data_sync ||
                                        fault.kind == model::Failure::meta_sync);
  const auto what =
      compose("{}, fault {} of rank {} in generation {}", testing::PrintToString(path.position),
              static_cast<int>(fault.kind), fault.rank, fault.generation);
  EXPECT_TRUE(std::ranges::includes(path.outcomes, found)) << what;
  EXPECT_TRUE(synced || found == path.outcomes) << what;
}

void walk_all(std::uint32_t world, std::uint64_t stride) {
  std::vector<Path> paths;
  std::uint64_t of_model = 0;
  for (const model::Fault& fault : model::all_faults(static_cast<int>(world))) {
    auto more = paths_of(static_cast<int>(world), fault, of_model);
    paths.insert(paths.end(), more.begin(), more.end());
  }
  Recoveries recoveries(world);
  in_parallel(paths.size() / stride, [&](std::uint64_t i) { walk(paths[i * stride], recoveries); });
  std::printf(
      "commit paths, %u ranks: %llu of %llu positions of the model's %llu images, %llu "
      "disks, %llu distinct\n",
      world, static_cast<unsigned long long>(paths.size() / stride),
      static_cast<unsigned long long>(paths.size()), static_cast<unsigned long long>(of_model),
      static_cast<unsigned long long>(recoveries.images()),
      static_cast<unsigned long long>(recoveries.distinct()));
}

TEST(CommitPaths, OfOneRankLeaveWhatTheModelSays) { walk_all(1, brief_or(3, 1)); }
TEST(CommitPaths, OfTwoRanksLeaveWhatTheModelSays) { walk_all(2, brief_or(31, 1)); }
TEST(CommitPaths, OfThreeRanksLeaveWhatTheModelSays) { walk_all(3, brief_or(797, 1)); }

TEST(CommitPaths, OfSeededSchedulesLoseNothingEither) {
  const std::uint64_t seed = seed_for("random schedules");
  const std::uint64_t schedules = brief_or(200, 10000);
  Recoveries of_two(2), of_three(3);
  in_parallel(schedules, [&](std::uint64_t i) {
    Draws draws(seed + i);
    const auto world = static_cast<std::uint32_t>(draws.between(2, 3));
    Trouble trouble;
    trouble.fault = draws.of(model::all_faults(static_cast<int>(world)));
    for (std::uint64_t failures = draws.below(3); failures > 0; --failures)
      trouble.failing.insert(draws.below(16));
    Position position;
    for (std::uint32_t rank = 0; rank < world; ++rank) position.push_back(draws.below(20));
    Left left;
    drive(position, trouble, left);
    const bool torn = draws.below(2) == 0;
    const auto image = left.disk->after(
        torn ? PowerLoss{PowerLoss::Unsynced::drawn, draws.next()}
             : PowerLoss{PowerLoss::Unsynced::numbered, draws.below(left.disk->choices())});
    SCOPED_TRACE(compose("schedule {}", i));
    (world == 2 ? of_two : of_three).of(image, left.told);
  });
  std::printf("random schedules: %llu, %llu distinct disks\n",
              static_cast<unsigned long long>(schedules),
              static_cast<unsigned long long>(of_two.distinct() + of_three.distinct()));
}

}  // namespace
}  // namespace ebb::test
