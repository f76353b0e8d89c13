#include "tests/durability/histories/spaces.h"

#include <algorithm>
#include <cerrno>
#include <map>
#include <mutex>
#include <system_error>

#include "ebb/libswap/space/swap_space.h"
#include "tests/durability/machines.h"

namespace ebb::test {
namespace {

namespace fs = std::filesystem;
using libswap::BufferId;
using libswap::BufferPart;
using libswap::FaultKind;
using libswap::FaultOn;
using libswap::SwapSpace;
using Access = SwapSpace::Access;
using Release = SwapSpace::Release;

using Bytes = std::vector<std::byte>;
using Contents = std::vector<Bytes>;  // by tensor, of all ranks

constexpr int kSpacePatience = 6;

// All that outlives a start.
struct Model {
  std::vector<std::uint64_t> sizes;         // of tensors
  std::map<std::uint64_t, Contents> begun;  // snapshots, by step
  std::uint64_t committed = 0;              // the newest step that is
  std::uint64_t last_step = 0;              // of those begun
};

struct SpaceStart {
  std::uint32_t ranks = 1;
  Disks disks;
  std::vector<std::vector<FlatRange>> parts;  // by rank, by tensor
  libswap::SwapSpaceConfig config;
  bool fails = false, sync_fails = false;
  std::uint64_t turns = 0, seed = 0;
};

// Cut anywhere: some ranks may have nothing of a tensor.
SpaceStart draw_start(Draws& draws, const Model& model, const fs::path& base) {
  SpaceStart start;
  start.ranks = static_cast<std::uint32_t>(draws.between(1, 3));
  start.disks = draw_disks(draws, start.ranks, base);
  start.parts.resize(start.ranks);
  for (const std::uint64_t size : model.sizes) {
    std::vector<std::uint64_t> cuts = {0, size};
    for (std::uint32_t rank = 1; rank < start.ranks; ++rank) cuts.push_back(draws.below(size + 1));
    std::ranges::sort(cuts);
    for (std::uint32_t rank = 0; rank < start.ranks; ++rank)
      start.parts[rank].push_back({cuts[rank], cuts[rank + 1] - cuts[rank]});
  }
  start.config.tile_bytes = draws.of<std::uint64_t>({4096, 8192, 65536});
  std::uint64_t largest = 0, all = 0;
  for (const std::uint64_t size : model.sizes) {
    const std::uint64_t tiles = formats::div_ceil(size, start.config.tile_bytes);
    largest = std::max(largest, tiles);
    all += tiles;
  }
  start.config.budget_bytes = (largest + 2 + draws.below(all + 1)) * start.config.tile_bytes;
  start.config.slots = static_cast<std::uint32_t>(draws.between(2, 4));
  start.config.threads = static_cast<std::uint32_t>(draws.between(1, 3));
  start.fails = draws.below(3) != 0;
  start.sync_fails = start.fails && draws.below(3) == 0;
  start.turns = draws.between(1, 12);
  start.seed = draws.next();
  return start;
}

// One rank of one start. An error is what should not have been.
class SpaceRank {
 public:
  SpaceRank(Model& model, std::mutex& mutex, const SpaceStart& start, libmuon::Communicator& ranks,
            SwapSpace& space, libswap::FaultPlan& faults, Tally& tally)
      : model_(model),
        mutex_(mutex),
        start_(start),
        ranks_(ranks),
        space_(space),
        faults_(faults),
        tally_(tally),
        parts_(start.parts[index_of(ranks.rank())]),
        shared_(start.seed),
        mine_(start.seed + 1 + index_of(ranks.rank())) {}

  Result<> run() {
    EBB_TRY(open());
    for (std::uint64_t turn = 0; turn < start_.turns && !lost_; ++turn) {
      break_disk();
      for (std::uint64_t i = mine_.below(12); i > 0; --i) EBB_TRY(act());
      EBB_TRY(meet());
    }
    held_.clear();
    return ranks_.agree(0).has_value() ? Result<>() : Error{Code::peer, "another rank is gone"};
  }

 private:
  struct Held {
    SwapSpace::Lease lease;
    Access access;
    Bytes bytes;  // as they must be
  };

  bool speaks() const { return ranks_.rank() == Rank{0}; }
  void count(std::uint64_t Tally::* what) { tally_.*what += speaks() ? 1 : 0; }

  Result<> open() {
    for (std::size_t i = 0; i < parts_.size(); ++i)
      EBB_TRY(space_.register_buffer(
          {BufferPart{compose("t{}", i), "state", DType::u8, {model_.sizes[i]}, parts_[i]}}));
    EBB_TRY(space_.open([this](BufferId buffer, std::span<std::byte> bytes) -> Result<> {
      const FlatRange part = parts_[index_of(buffer)];
      const Bytes& initial = model_.begun.at(0)[index_of(buffer)];
      std::copy_n(initial.begin() + static_cast<std::ptrdiff_t>(part.first), part.count,
                  bytes.begin());
      return {};
    }));
    const auto found = model_.begun.find(space_.step());
    if (found == model_.begun.end() || space_.step() < model_.committed)
      return Error{Code::state, compose("it is at step {}, and {} was committed: {}", space_.step(),
                                        model_.committed, space_.origin())};
    for (std::size_t i = 0; i < parts_.size(); ++i) {
      const auto first = found->second[i].begin() + static_cast<std::ptrdiff_t>(parts_[i].first);
      now_.emplace_back(first, first + static_cast<std::ptrdiff_t>(parts_[i].count));
    }
    EBB_TRY(ranks_.agree(0));  // all have looked
    return {};
  }

  // What a disk kept from being done is done when it is mended.
  template <typename Do>
  auto insist(const Do& something) -> decltype(something()) {
    auto done = something();
    for (int tries = 0; !done && is_the_disk(done.error()) && tries < kSpacePatience; ++tries) {
      tally_.errors += speaks() ? 1 : 0;
      faults_.clear();
      space_.go_on();
      done = something();
    }
    return done;
  }
  static bool is_the_disk(const Error& error) {
    return error.code == Code::io || error.code == Code::no_space;
  }

  Result<> act() {
    const auto buffer = static_cast<std::uint32_t>(mine_.below(parts_.size()));
    switch (mine_.below(8)) {
      case 0:
        return insist([&] { return space_.prefetch(BufferId{buffer}); });
      case 1:
      case 2:
        return acquire(buffer, Access::read);
      case 3:
      case 4:
      case 5:
        return acquire(buffer, Access::modify);
      case 6:
        return mine_.below(3) == 0 ? insist([&] { return space_.flush(); }) : Result<>();
      default:
        return release();
    }
  }

  Result<> acquire(std::uint32_t buffer, Access access) {
    const bool conflict = std::ranges::any_of(held_, [&](const Held& held) {
      return index_of(held.lease.buffer()) == buffer &&
             (access == Access::modify || held.access == Access::modify);
    });
    auto lease =
        insist([&] { return space_.acquire(BufferId{buffer}, libswap::Tier::host, access); });
    if (!lease && lease.error().code == Code::no_memory && !held_.empty()) return release();
    if (conflict)
      return !lease && lease.error().code == Code::state
                 ? Result<>()
                 : Error{Code::state, compose("t{} was given away twice", buffer)};
    if (!lease) return lease.error();
    if (!std::ranges::equal(lease->bytes(), now_[buffer]))
      return Error{Code::corrupt, compose("t{} has other bytes", buffer)};
    held_.push_back({std::move(*lease), access, now_[buffer]});
    if (access == Access::modify) change(held_.back());
    return held_.size() > 3 ? release() : Result<>();
  }

  void change(Held& held) {
    if (held.bytes.empty()) return;
    const std::uint64_t first = mine_.below(held.bytes.size());
    for (std::uint64_t i = mine_.below(held.bytes.size() - first) + 1; i > 0; --i)
      held.bytes[first + i - 1] = std::byte(mine_.next());
    std::ranges::copy(held.bytes, held.lease.bytes().begin());
  }

  Result<> release() {
    if (held_.empty()) return {};
    const std::size_t which = mine_.below(held_.size());
    Held& held = held_[which];
    const std::uint32_t buffer = index_of(held.lease.buffer());
    if (!std::ranges::equal(held.lease.bytes(), held.bytes))
      return Error{Code::corrupt, compose("t{} changed while it was held", buffer)};
    const bool dirty = held.access == Access::modify && mine_.below(4) != 0;
    if (dirty) {
      EBB_TRY(insist([&] { return space_.release(held.lease, Release::dirty); }));
      now_[buffer] = held.bytes;
    } else {  // it is, whatever is answered
      static_cast<void>(space_.release(held.lease, Release::clean).has_value());
    }
    held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(which));
    return {};
  }

  Result<> meet() {
    switch (shared_.below(3)) {
      case 0:
        return all_of(space_.poll_snapshot());
      case 1:
        return snapshot();
      default:
        EBB_TRY(all_of(space_.wait_snapshot()));
        if (begun_ && speaks()) model_.committed = space_.step();
        begun_ = false;
        EBB_TRY(ranks_.agree(0));
        return {};
    }
  }

  Result<> snapshot() {
    const std::uint64_t step = model_.last_step + 1 + shared_.below(3);
    EBB_TRY(ranks_.agree(0));  // all have read it
    {
      const std::lock_guard lock(mutex_);
      model_.last_step = step;
      Contents& contents = model_.begun.try_emplace(step, model_.begun.at(0)).first->second;
      for (std::size_t i = 0; i < parts_.size(); ++i)
        std::ranges::copy(now_[i],
                          contents[i].begin() + static_cast<std::ptrdiff_t>(parts_[i].first));
    }
    count(&Tally::steps);
    const auto begun = space_.snapshot(step);
    EBB_TRY(all_of(begun));
    begun_ = begun_ || (begun && *begun);
    return {};
  }

  // An error on one rank is one on all: a snapshot is given up, or the store is lost for this
  // start.
  template <typename T>
  Result<> all_of(const Result<T>& mine) {
    EBB_TRY_ASSIGN(const std::int64_t worst, ranks_.agree(mine ? 1 : 0));
    EBB_TRY_ASSIGN(const std::int64_t best, ranks_.agree(mine ? -1 : 0));
    if (worst == 0 && best != 0)
      return Error{Code::state, "an error on one rank and none on another: " +
                                    (mine ? std::string("none here") : mine.error().message)};
    if (worst == 1) return {};
    count(&Tally::errors);
    if (!is_the_disk(mine.error()) && mine.error().code != Code::peer &&
        mine.error().code != Code::state)
      return mine.error();
    faults_.clear();
    space_.go_on();
    EBB_TRY_ASSIGN(const std::int64_t usable,
                   ranks_.agree(mine.error().code == Code::state ? 0 : 1));
    lost_ = usable == 0;
    begun_ = false;
    return {};
  }

  void break_disk() {
    if (!start_.fails || shared_.below(3) == 0) return;
    const bool sync = start_.sync_fails && shared_.below(4) == 0;
    libswap::Fault fault;
    fault.on = sync ? FaultOn::sync : shared_.of<FaultOn>({FaultOn::read, FaultOn::write});
    fault.at = shared_.below(sync ? 2 : 20);
    fault.count = shared_.of<std::uint64_t>({1, 3, 40});
    fault.kind = sync ? FaultKind::fail
                      : shared_.of<FaultKind>({FaultKind::fail, FaultKind::short_transfer});
    fault.error = shared_.of<int>({EIO, ENOSPC});
    if (shared_.below(ranks_.world()) == index_of(ranks_.rank())) faults_.add(fault);
  }

  Model& model_;
  std::mutex& mutex_;
  const SpaceStart& start_;
  libmuon::Communicator& ranks_;
  SwapSpace& space_;
  libswap::FaultPlan& faults_;
  Tally& tally_;
  const std::vector<FlatRange>& parts_;
  Draws shared_, mine_;
  Contents now_;  // what was released last, of this rank's parts
  std::vector<Held> held_;
  bool begun_ = false;  // the last snapshot is under way, or committed
  bool lost_ = false;
};

std::string run_start(Model& model, const SpaceStart& start, Tally& tally) {
  std::mutex mutex;
  Machines machines([] { return disk(); }, start.ranks);
  const auto answers = machines.run([&](libmuon::Communicator& ranks,
                                        libswap::IoQueue& io) -> Result<> {
    const std::size_t rank = index_of(ranks.rank());
    EBB_TRY_ASSIGN(const auto swap, libswap::SwapDirectory::open(io, start.disks.directories[rank],
                                                                 ranks, start.disks.sources[rank]));
    SwapSpace space(io, *swap, ranks, start.config);
    auto& faults = machines.faults(static_cast<std::uint32_t>(rank));
    EBB_TRY(SpaceRank(model, mutex, start, ranks, space, faults, tally).run());
    faults.clear();
    return {};
  });
  ++tally.starts;
  for (std::size_t rank = 0; rank < answers.size(); ++rank)
    if (!answers[rank] && answers[rank].error().code != Code::peer)
      return compose("rank {}: {}", rank, answers[rank].error().message);
  for (const auto& answer : answers)
    if (!answer) return answer.error().message;
  return {};
}

constexpr std::uint32_t kDisks = 3;

fs::path disk_in(const fs::path& base, std::uint64_t number) {
  return base / compose("disk-{}", number);
}

}  // namespace

Disks draw_disks(Draws& draws, std::uint32_t ranks, const fs::path& base) {
  Disks disks;
  disks.sources.resize(ranks);
  const std::uint64_t first = draws.below(kDisks), step = draws.below(2);
  for (std::uint32_t rank = 0; rank < ranks; ++rank)
    disks.directories.push_back(disk_in(base, (first + step * rank) % kDisks));
  for (std::uint32_t number = 0; number < kDisks; ++number) {
    const std::uint64_t surely = draws.below(ranks);
    for (std::uint32_t rank = 0; rank < ranks; ++rank)
      if (draws.below(3) == 0 || rank == surely)
        disks.sources[rank].push_back(disk_in(base, number));
  }
  return disks;
}

void clear_other_disks(const Disks& disks, const fs::path& base) {
  std::error_code ignored;
  for (std::uint32_t number = 0; number < kDisks; ++number)
    if (const fs::path disk = disk_in(base, number);
        std::ranges::find(disks.directories, disk) == disks.directories.end())
      fs::remove_all(disk, ignored);
}

Verdict run_space_history(std::uint64_t seed, const fs::path& directory) {
  const fs::path own = directory / compose("space-history-{}", seed);
  std::error_code ignored;
  fs::remove_all(own, ignored);
  fs::create_directories(own, ignored);
  Draws draws(seed);
  Model model;
  for (std::uint64_t left = draws.between(3, 12); left > 0; --left)
    model.sizes.push_back(draws.below(3) == 0 ? draws.between(1, 20000) : draws.between(1, 1500));
  Contents& initial = model.begun[0];
  for (const std::uint64_t size : model.sizes) {
    Bytes& bytes = initial.emplace_back(size);
    for (std::byte& byte : bytes) byte = std::byte(draws.next());
  }
  Verdict verdict;
  verdict.tally.histories = 1;
  for (std::uint64_t left = draws.between(2, 5); left > 0 && verdict.wrong.empty(); --left) {
    const SpaceStart start = draw_start(draws, model, own);
    verdict.wrong = run_start(model, start, verdict.tally);
    clear_other_disks(start.disks, own);
  }
  fs::remove_all(own, ignored);
  return verdict;
}

}  // namespace ebb::test
