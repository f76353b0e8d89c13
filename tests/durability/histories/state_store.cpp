#include <map>
#include <system_error>
#include <thread>

#include "ebb/libmuon/comm/communicator.h"
#include "ebb/libswap/space/state_store.h"
#include "tests/durability/draws.h"
#include "tests/durability/histories/spaces.h"
#include "tests/libmuon/support/world.h"

namespace ebb::test {
namespace {

namespace fs = std::filesystem;
using libswap::StateStore;
using libswap::StoredTensor;
using enum Policy;

// An element after a step: a function of what it was, so that a visit too many or too few shows.
std::uint32_t next_of(std::uint32_t before, std::uint64_t step) {
  return before * 2654435761u + static_cast<std::uint32_t>(step);
}
std::uint32_t initial_of(std::size_t tensor, std::uint64_t element) {
  return static_cast<std::uint32_t>(tensor * 1000003 + element);
}

struct Job {
  std::vector<StoredTensor> tensors;
  // Steps in the order they were made, up to each that a store may be at.
  std::map<std::uint64_t, std::vector<std::uint64_t>> made = {{0, {}}};
  std::uint64_t committed = 0;
};

struct StoreStart {
  std::uint32_t ranks = 1;
  Disks disks;
  libswap::StateStoreConfig config;
  std::uint64_t steps = 0, seed = 0;
};

StoreStart draw_start(Draws& draws, const Job& job, const fs::path& base) {
  StoreStart start;
  start.ranks = static_cast<std::uint32_t>(draws.between(1, 3));
  start.disks = draw_disks(draws, start.ranks, base);
  start.config.tile_bytes = draws.of<std::uint64_t>({4096, 8192, 65536});
  start.config.budget_bytes = draws.between(24, 60) * start.config.tile_bytes;
  start.config.threads = static_cast<std::uint32_t>(draws.between(1, 2));
  Layout::Spec& cut = start.config.partition;
  cut.policy = draws.of<Policy>({zero12, zero12_boundary, zero3, rows, uneven_rows, layer_wise});
  cut.mesh = {start.ranks, 1};
  cut.align_elems = draws.of<std::uint64_t>({1, 16});
  std::vector<Shape> shapes;
  for (const StoredTensor& tensor : job.tensors) shapes.push_back(tensor.shape);
  add_lists(shapes, cut);
  start.steps = draws.between(1, 6);
  start.seed = draws.next();
  return start;
}

// One rank of one start. An error is what should not have been.
class StoreRank {
 public:
  StoreRank(Job& job, const StoreStart& start, libmuon::Communicator& ranks, Tally& tally)
      : job_(job),
        start_(start),
        ranks_(ranks),
        tally_(tally),
        shared_(start.seed),
        mine_(start.seed + 1 + index_of(ranks.rank())) {}

  Result<> run() {
    libswap::StateStoreConfig config = start_.config;
    config.ranks = &ranks_;
    config.directory = start_.disks.directories[index_of(ranks_.rank())];
    config.sources = start_.disks.sources[index_of(ranks_.rank())];
    EBB_TRY_ASSIGN(store_, StateStore::open(config, job_.tensors, [](const auto& visit) {
                     return each(visit, [&](std::uint64_t element, std::uint32_t&) {
                       return initial_of(visit.tensor(), element);
                     });
                   }));
    const auto found = job_.made.find(store_->step());
    if (found == job_.made.end() || store_->step() < job_.committed)
      return Error{Code::state, compose("it is at step {}, and {} was committed: {}",
                                        store_->step(), job_.committed, store_->origin())};
    made_ = found->second;
    EBB_TRY(ranks_.agree(0));  // all have looked
    EBB_TRY(look());
    for (std::uint64_t i = 0; i < start_.steps; ++i) EBB_TRY(turn());
    return look();
  }

 private:
  bool speaks() const { return ranks_.rank() == Rank{0}; }

  // Of all of its states.
  template <typename Change>
  static Result<> each(const StateStore::Visit& visit, const Change& change) {
    for (const char* const state : {"a", "b"}) {
      EBB_TRY_ASSIGN(const auto values, visit.state<std::uint32_t>(state));
      for (std::uint64_t i = 0; i < values.size(); ++i)
        values[i] = change(visit.range().first + i, values[i]);
    }
    return {};
  }

  Result<> turn() {
    const std::uint64_t step = store_->step() + 1 + shared_.below(3);
    EBB_TRY(make(step));
    made_.push_back(step);
    if (speaks()) ++tally_.steps;
    if (shared_.below(4) == 0) EBB_TRY(look());
    if (shared_.below(2) != 0) return {};
    EBB_TRY(ranks_.agree(0));
    if (speaks()) job_.made[step] = made_;
    EBB_TRY_ASSIGN(const bool begun, store_->snapshot());
    if (!begun || shared_.below(2) != 0) return {};
    EBB_TRY(store_->wait_snapshot());
    if (speaks()) job_.committed = step;
    return {};
  }

  // Visits that fail, each at a tensor of this rank's own: the step goes on at that one.
  Result<> make(std::uint64_t step) {
    std::uint64_t fails_at = mine_.below(3 * job_.tensors.size());
    for (int tries = 0; tries < 3; ++tries) {
      std::uint64_t visited = 0;
      const auto done = store_->for_each(step, [&](const auto& visit) -> Result<> {
        EBB_TRY(
            each(visit, [&](std::uint64_t, std::uint32_t value) { return next_of(value, step); }));
        if (visited++ == fails_at) return Error{Code::cancelled, "a visit that fails"};
        return {};
      });
      if (done || done.error().code != Code::cancelled) return done;
      if (speaks()) ++tally_.errors;
      if (store_->snapshot()) return Error{Code::state, "a snapshot in the middle of a step"};
      fails_at = mine_.below(3 * job_.tensors.size());
      if (tries == 1) fails_at = ~std::uint64_t{0};
    }
    return Error{Code::state, "a step that does not go on"};
  }

  Result<> look() {
    bool wrong = false;
    EBB_TRY(store_->read_each([&](const auto& visit) -> Result<> {
      return each(visit, [&](std::uint64_t element, std::uint32_t value) {
        std::uint32_t want = initial_of(visit.tensor(), element);
        for (const std::uint64_t step : made_) want = next_of(want, step);
        wrong = wrong || value != want;
        return value;
      });
    }));
    if (!wrong) return {};
    return Error{Code::corrupt, compose("other elements at step {}", store_->step())};
  }

  Job& job_;
  const StoreStart& start_;
  libmuon::Communicator& ranks_;
  Tally& tally_;
  Draws shared_, mine_;
  std::unique_ptr<StateStore> store_;
  std::vector<std::uint64_t> made_;  // steps
};

std::string run_start(Job& job, const StoreStart& start, Tally& tally) {
  const auto ranks = libmuon::make_thread_ranks(start.ranks, std::chrono::seconds(60));
  std::vector<Result<>> answers(start.ranks);
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < start.ranks; ++rank)
    threads.emplace_back([&, rank] {
      answers[rank] = StoreRank(job, start, *ranks[rank], tally).run();
      if (!answers[rank]) ranks[rank]->abort();
    });
  for (std::thread& thread : threads) thread.join();
  ++tally.starts;
  for (const auto& answer : answers)
    if (!answer && answer.error().code != Code::peer) return answer.error().message;
  for (const auto& answer : answers)
    if (!answer) return answer.error().message;
  return {};
}

}  // namespace

Verdict run_state_store_history(std::uint64_t seed, const fs::path& directory) {
  const fs::path own = directory / compose("store-history-{}", seed);
  std::error_code ignored;
  fs::remove_all(own, ignored);
  fs::create_directories(own, ignored);
  Draws draws(seed);
  Job job;
  for (std::uint64_t left = draws.between(2, 8); left > 0; --left)
    job.tensors.push_back({.name = compose("t{}", left),
                           .shape = {draws.between(1, 60), draws.between(1, 50)},
                           .states = {{"a", DType::i32}, {"b", DType::i32}}});
  Verdict verdict;
  verdict.tally.histories = 1;
  for (std::uint64_t left = draws.between(2, 4); left > 0 && verdict.wrong.empty(); --left) {
    const StoreStart start = draw_start(draws, job, own);
    verdict.wrong = run_start(job, start, verdict.tally);
    clear_other_disks(start.disks, own);
  }
  fs::remove_all(own, ignored);
  return verdict;
}

}  // namespace ebb::test
