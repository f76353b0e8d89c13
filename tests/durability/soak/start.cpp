#include "tests/durability/soak/start.h"

#include <sys/mman.h>
#include <unistd.h>

#include <bit>
#include <chrono>
#include <new>
#include <thread>

#include "ebb/formats/conversion/convert.h"
#include "ebb/formats/describe.h"
#include "ebb/formats/registry.h"
#include "ebb/libswap/publish/temporaries.h"
#include "ebb/libswap/tree/file_tree.h"
#include "ebb/libswap/write/write_checkpoint.h"
#include "tests/libmuon/support/processes.h"
#include "tests/libmuon/support/world.h"

namespace ebb::soak {
namespace {

namespace fs = std::filesystem;
using libmuon::Communicator;
using libswap::IoQueue;
using libswap::SwapDirectory;
using test::RankEngine;
using Clock = std::chrono::steady_clock;

constexpr std::chrono::milliseconds kLimit(20000);
constexpr const char* kExport = "exported";

template <typename T>
std::shared_ptr<T> map_shared() {
  void* const place =
      ::mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  EBB_CHECK(place != MAP_FAILED);
  return {new (place) T(), [](T* shared) { ::munmap(shared, sizeof(T)); }};
}

std::uint64_t hash_of(const std::vector<float>& numbers) {
  std::uint64_t hash = 0xcbf29ce484222325;
  for (const float number : numbers)
    hash = (hash ^ std::bit_cast<std::uint32_t>(number)) * 0x100000001b3;
  return hash;
}

// The masters of a checkpoint, in the order of the model.
Result<std::vector<float>> weights_of(const Checkpoint& checkpoint) {
  std::vector<float> all;
  const auto tensors = test::tensors_of(checkpoint);
  for (const auto& param : test::nuisance_model().params) {
    const auto found = tensors.find(param.name + " param");
    if (found == tensors.end()) return Error{Code::incomplete, "the export has no " + param.name};
    all.insert(all.end(), found->second.begin(), found->second.end());
  }
  return all;
}

Result<std::unique_ptr<IoQueue>> open_queue() {
  EBB_TRY_ASSIGN(auto chosen, libswap::open_backend(libswap::BackendChoice::automatic));
  return IoQueue::start(std::move(chosen.backend), {});
}

class SoakRank {
 public:
  SoakRank(const Start& start, Board& board, const Reference& reference, Communicator& ranks)
      : start_(start),
        board_(board),
        reference_(reference),
        ranks_(ranks),
        number_(formats::index_of(ranks.rank())) {
    enter(start.committed > 0 ? Phase::resume : Phase::create);
    board_.process[number_] = ::getpid();
  }

  // With a queue and a swap directory of its own.
  Result<> run_alone() {
    EBB_TRY_ASSIGN(const auto io, open_queue());
    EBB_TRY_ASSIGN(const auto swap,
                   SwapDirectory::open(*io, start_.directories[number_], ranks_, start_.sources));
    return run(*io, *swap);
  }

  Result<> run(IoQueue& io, SwapDirectory& swap) {
    enter(swap.current() ? Phase::resume : Phase::create);
    const auto config = test::config_of(start_.setup, start_.setup.model);
    EBB_TRY_ASSIGN(auto rank, RankEngine::open(io, swap, ranks_, config));
    const std::uint64_t began_at = rank.engine().step_count();
    if (began_at < start_.committed) board_.lost = true;
    compare(rank);
    if (number_ == 0) EBB_TRY(look_at_export(io));
    board_.began_at = began_at;
    raise(board_.committed, rank.engine().committed_step());
    ++board_.opened;
    EBB_TRY(train(io, rank, began_at + start_.steps));
    enter(Phase::over);
    return {};
  }

 private:
  Result<> train(IoQueue& io, RankEngine& rank, std::uint64_t last_step) {
    libmuon::Engine& engine = rank.engine();
    std::uint64_t cut = 0;  // the step of the last snapshot
    while (engine.step_count() < last_step) {
      enter(engine.committed_step() < cut ? Phase::snapshot : Phase::step);
      EBB_TRY(rank.hand_in(engine.step_count() + 1));
      EBB_TRY(rank.step());
      compare(rank);
      raise(board_.committed, engine.committed_step());
      const std::uint64_t step = engine.step_count();
      if (step % start_.setup.snapshot_every != 0) continue;
      enter(Phase::snapshot);
      EBB_TRY_ASSIGN(const bool begun, engine.snapshot());
      if (begun) cut = step;
      // Every other one is committed behind the next steps.
      if (step / start_.setup.snapshot_every % 2 == 0) EBB_TRY(engine.wait_snapshot());
      raise(board_.committed, engine.committed_step());
      if (start_.places == Places::shared && step / start_.setup.snapshot_every % 3 == 0)
        EBB_TRY(write_dcp(io, engine));
    }
    EBB_TRY(engine.wait_snapshot());
    EBB_TRY(rank.commit());
    raise(board_.committed, engine.committed_step());
    return {};
  }

  Result<> write_dcp(IoQueue& io, const libmuon::Engine& engine) {
    enter(Phase::write_dcp);
    EBB_TRY_ASSIGN(const auto pinned, engine.open_export());
    const auto write = [&]() -> Result<> {
      EBB_TRY_ASSIGN(const auto source, pinned.describe());
      EBB_TRY_ASSIGN(
          const auto conversion,
          formats::plan_conversion(*source, {.from = formats::format_of(source->catalog()),
                                             .to = *formats::format_named("dcp"),
                                             .world = 2}));
      EBB_TRY(libswap::write_checkpoint(io, *conversion.content, conversion.plan,
                                        start_.exports / kExport,
                                        {.overwrite = libswap::Overwrite::replace, .workers = 1}));
      raise(board_.exported, pinned.step());
      return {};
    };
    return libswap::agree_all(ranks_, number_ == 0 ? write() : Result<>(), "exporting");
  }

  // What earlier starts exported is whole and not older than they were told.
  Result<> look_at_export(IoQueue& io) {
    EBB_TRY(libswap::remove_stale_temporaries(io.backend(), start_.exports));
    EBB_TRY_ASSIGN(const bool there, io.backend().exists(start_.exports / kExport));
    if (!there) {
      if (start_.exported > 0) board_.lost = true;
      return {};
    }
    EBB_TRY_ASSIGN(auto tree, libswap::open_tree(start_.exports / kExport));
    EBB_TRY_ASSIGN(const auto checkpoint, formats::describe(std::move(tree)));
    EBB_TRY_ASSIGN(const auto weights, weights_of(*checkpoint));
    const auto step = static_cast<std::uint64_t>(checkpoint->catalog().step.value_or(0));
    if (step < start_.exported) board_.lost = true;
    if (hash_of(weights) != reference_.hash.at(step)) ++board_.wrong_bits;
    return {};
  }

  void compare(RankEngine& rank) {
    const std::uint64_t step = rank.engine().step_count();
    if (hash_of(rank.flat_weights()) != reference_.hash.at(step)) ++board_.wrong_bits;
  }
  static void raise(std::atomic<std::uint64_t>& value, std::uint64_t floor) {
    std::uint64_t seen = value;
    while (seen < floor && !value.compare_exchange_weak(seen, floor)) {
    }
  }
  void enter(Phase phase) {
    const auto now = Clock::now();
    if (number_ == 0 && phase_ != phase && phase_ != Phase::over) {
      const auto spent = std::chrono::duration_cast<std::chrono::microseconds>(now - since_);
      board_.spent_us[index_of(phase_)] += static_cast<std::uint64_t>(spent.count());
      ++board_.entered[index_of(phase_)];
    }
    if (phase_ != phase) since_ = now;
    phase_ = phase;
    board_.phase[number_] = phase;
  }

  const Start& start_;
  Board& board_;
  const Reference& reference_;
  Communicator& ranks_;
  const std::uint32_t number_;
  Phase phase_ = Phase::over;
  Clock::time_point since_ = Clock::now();
};

Ended tell(const Result<>& answer, Board& board) {
  if (answer) return Ended::in_order;
  if (answer.error().code == Code::peer) return Ended::peer;
  board.fail(answer.error().message);
  return Ended::refused;
}

// The error of the rank whose own it was, before those of its peers.
Ended worse(Ended a, Ended b) {
  if (a == Ended::refused || b == Ended::refused) return Ended::refused;
  return a == Ended::in_order ? b : a;
}

Ended run_as_threads(const Start& start, Board& board, const Reference& reference) {
  std::unique_ptr<IoQueue> io;
  std::unique_ptr<SwapDirectory> swap;
  const auto open = [&]() -> Result<> {
    if (start.places == Places::separate) return {};
    EBB_TRY_ASSIGN(io, open_queue());
    EBB_TRY_ASSIGN(swap, SwapDirectory::open(*io, start.directories[0]));
    return {};
  };
  if (const auto opened = open(); !opened) return tell(opened, board);
  auto ranks = libmuon::make_thread_ranks(start.setup.ranks, kLimit);
  std::vector<Ended> ended(ranks.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank)
    threads.emplace_back([&, rank] {
      SoakRank one(start, board, reference, *ranks[rank]);
      const auto answer = swap ? one.run(*io, *swap) : one.run_alone();
      ended[rank] = tell(answer, board);
      if (!answer) ranks[rank]->abort();
    });
  for (std::thread& thread : threads) thread.join();
  Ended worst = Ended::in_order;
  for (const Ended one : ended) worst = worse(worst, one);
  return worst;
}

Ended run_as_processes(const Start& start, Board& board, const Reference& reference) {
  const auto answers = test::run_processes(start.setup.ranks, kLimit,
                                           [&](std::unique_ptr<Communicator> ranks) -> int {
                                             SoakRank one(start, board, reference, *ranks);
                                             return static_cast<int>(tell(one.run_alone(), board));
                                           });
  Ended worst = Ended::in_order;
  for (const int answer : answers)  // one that was killed is its peers' error
    worst = worse(worst, answer < 0 ? Ended::peer : static_cast<Ended>(answer));
  return worst;
}

}  // namespace

std::shared_ptr<Board> make_board() { return map_shared<Board>(); }
std::shared_ptr<Reference> make_reference() { return map_shared<Reference>(); }

Ended run_start(const Start& start, Board& board, const Reference& reference) {
  return start.ranks == RanksAre::threads ? run_as_threads(start, board, reference)
                                          : run_as_processes(start, board, reference);
}

void train_undisturbed(const fs::path& directory, Reference& reference) {
  const auto answers =
      test::run_processes(1, kLimit, [&](std::unique_ptr<Communicator> ranks) -> int {
        const auto run = [&]() -> Result<> {
          EBB_TRY_ASSIGN(const auto io, open_queue());
          EBB_TRY_ASSIGN(const auto swap, SwapDirectory::open(*io, directory, *ranks));
          const test::Training whole{};
          EBB_TRY_ASSIGN(auto rank,
                         RankEngine::open(*io, *swap, *ranks, test::config_of(whole, whole.model)));
          for (std::uint64_t step = 0; step <= Reference::kSteps; ++step) {
            if (step > 0) {
              EBB_TRY(rank.hand_in(step));
              EBB_TRY(rank.step());
            }
            reference.hash[step] = hash_of(rank.flat_weights());
          }
          return {};
        };
        return run() ? 0 : 1;
      });
  EBB_CHECK(answers == std::vector<int>{0});
}

}  // namespace ebb::soak
