// The k-th operation of a rank fails, once or for good, under two whole engines: through create,
// steps, a snapshot, a resume. A trainer that does what the errors say ends with the bits of a run
// that nothing happened to; what a disk did and did not tell is named at the next read.
#include <array>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <mutex>

#include "tests/durability/machines.h"

namespace ebb::test::failing_operations_tests {
namespace {

using libmuon::Communicator;
using libswap::Fault;
using libswap::FaultKind;
using libswap::FaultOn;
using libswap::FaultPlan;
using libswap::IoQueue;

constexpr std::uint64_t kFirstStart = 3, kSecondStart = 4, kLastStart = 5;  // their last steps

struct Kind {
  const char* name;
  FaultOn on;
  FaultKind kind;
  int error;
};
constexpr std::array kKinds = {
    Kind{"EIO", FaultOn::any, FaultKind::fail, EIO},
    Kind{"ENOSPC", FaultOn::any, FaultKind::fail, ENOSPC},
    Kind{"EDQUOT", FaultOn::any, FaultKind::fail, EDQUOT},
    Kind{"EINTR", FaultOn::any, FaultKind::fail, EINTR},
    Kind{"EAGAIN", FaultOn::any, FaultKind::fail, EAGAIN},
    Kind{"short", FaultOn::data, FaultKind::short_transfer, 0},
    Kind{"torn", FaultOn::data, FaultKind::torn, 0},
    Kind{"misdirected", FaultOn::data, FaultKind::misdirected, 0},
    Kind{"stale", FaultOn::data, FaultKind::stale, 0},
};

bool is_silent(const Kind& kind) {
  return kind.kind != FaultKind::fail && kind.kind != FaultKind::short_transfer;
}

// Some tiles resident; none, and the next sweep waits for a snapshot; all.
constexpr std::array kShapes = {Shape{}, Shape{.budget_bytes = 4 * 4096, .slots = 2},
                                Shape{.budget_bytes = 1u << 28, .slots = 4}};

struct Case {
  const Kind* kind = nullptr;
  std::uint32_t rank = 0;
  std::uint64_t at = 0;
  std::uint64_t count = 1;
  const Shape* shape = nullptr;
  std::string name() const {
    return compose("{} at operation {} of rank {}, {}, {} slots", kind->name, at, rank,
                   count == 1 ? "once" : "for good", shape->slots);
  }
};

// A training that does what errors tell it to, from start to start.
class Trainer {
 public:
  explicit Trainer(const Case& of) : case_(of) {
    const Kind& kind = *of.kind;
    machines_.faults(of.rank).add(
        {.on = kind.on, .at = of.at, .count = of.count, .kind = kind.kind, .error = kind.error});
  }

  // Whether a start came to its last step. What stopped it is mended, and it is tried again: the
  // second time nothing may be left of it, but what a lying disk has lost.
  bool start(std::uint64_t last_step) {
    for (int tries = 0; tries < 3; ++tries) {
      const auto answers = machines_.run([&](Communicator& ranks, IoQueue& io) -> Result<> {
        EBB_TRY_ASSIGN(auto open, open_rank(ranks, io, "/swap", *case_.shape));
        same_bits(open.rank);
        Training on{ranks, open.rank};
        return train(on, last_step);
      });
      const bool well = expect_all_or_none(answers);
      if (well) return true;
      mend();
    }
    EXPECT_TRUE(is_silent(*case_.kind)) << case_.name() << ": " << first_error_;
    EXPECT_TRUE(named_) << case_.name() << ": " << first_error_;
    return false;
  }
  void mend() {
    for (std::uint32_t rank = 0; rank < machines_.world(); ++rank) machines_.faults(rank).clear();
  }
  // Nothing but the lock and one store.
  void expect_no_leftovers() {
    const auto names = libswap::make_memory_backend(disk_)->list("/swap");
    ASSERT_TRUE(names) << case_.name();
    EXPECT_EQ(names->size(), 2u) << case_.name() << ": " << testing::PrintToString(*names);
  }
  std::uint64_t errors() const { return errors_; }
  Machines& machines() { return machines_; }

 private:
  // What a rank of one start still puts up with.
  struct Training {
    Communicator& ranks;
    RankEngine& rank;
    int patience = 4;
  };

  Result<> train(Training& on, std::uint64_t last_step) {
    libmuon::Engine& engine = on.rank.engine();
    while (engine.committed_step() < last_step) {
      while (engine.step_count() < last_step) {
        EBB_TRY(on.rank.hand_in(engine.step_count() + 1));
        EBB_TRY(get_over(on, on.rank.step()));
        same_bits(on.rank);
        if (engine.step_count() == 1) EBB_TRY(get_over(on, engine.snapshot()));
      }
      // That of an earlier step may be under way.
      EBB_TRY(get_over(on, engine.wait_snapshot()));
      EBB_TRY(get_over(on, engine.snapshot()));
      EBB_TRY(get_over(on, engine.wait_snapshot()));
    }
    return {};
  }

  // Does what an error on some ranks, and so on all, asks for: go on, else go back, else start
  // over.
  template <typename T>
  Result<> get_over(Training& on, const Result<T>& mine) {
    EBB_TRY_ASSIGN(const std::int64_t worst, on.ranks.agree(mine ? 1 : 0));
    EBB_TRY_ASSIGN(const std::int64_t best, on.ranks.agree(mine ? -1 : 0));
    if (worst == 1) return {};
    EXPECT_EQ(best, 0) << case_.name() << ": an error on one rank and none on another";
    note(mine.error());
    if (--on.patience == 0) return mine.error();
    mend();
    EBB_TRY(on.ranks.agree(0));
    libmuon::Engine& engine = on.rank.engine();
    const auto continued = engine.continue_step();
    if (continued) return {};
    note(continued.error());
    // Where no step was stopped and the store works on, a snapshot was given up.
    const bool stopped = continued.error().message.find("no step is stopped") == std::string::npos;
    const auto usable = engine.wait_snapshot();
    const bool given_up = !stopped && (usable || usable.error().code != Code::state);
    EBB_TRY_ASSIGN(const std::int64_t all_go_on, on.ranks.agree(given_up ? 1 : 0));
    if (all_go_on == 1) return {};
    EBB_TRY(engine.abandon_step());
    same_bits(on.rank);
    return {};
  }

  void same_bits(RankEngine& rank) const {
    EXPECT_TRUE(rank.flat_weights() == wanted_weights().at(rank.engine().step_count()))
        << case_.name() << ": other bits at step " << rank.engine().step_count();
  }

  // Typed, and on every rank.
  bool expect_all_or_none(const std::vector<Result<>>& answers) {
    std::uint64_t failed = 0;
    for (const auto& answer : answers) {
      if (answer) continue;
      ++failed;
      note(answer.error());
    }
    EXPECT_TRUE(failed == 0 || failed == answers.size()) << case_.name() << ": " << first_error_;
    return failed == 0;
  }
  void note(const Error& error) {
    const std::lock_guard lock(mutex_);
    ++errors_;
    if (first_error_.empty() || error.code != Code::peer) first_error_ = error.message;
    EXPECT_EQ(error.message.find("kept the others waiting"), std::string::npos)
        << case_.name() << ": " << error.message;
    // A checksum or a structure was not what it should be, and the file is said.
    named_ = named_ || ((error.code == Code::corrupt || error.code == Code::incomplete) &&
                        error.message.find("/swap/") != std::string::npos);
  }

  const Case case_;
  const std::shared_ptr<libswap::MemoryDisk> disk_ = empty_disk();
  Machines machines_{disk_};
  std::mutex mutex_;
  std::uint64_t errors_ = 0;
  std::string first_error_;
  bool named_ = false;
};

struct Tally {
  std::atomic<std::uint64_t> cases = 0, with_errors = 0, same_bits = 0, refused = 0;
};

void run_case(const Case& one, Tally& tally) {
  Trainer trainer(one);
  const bool done = trainer.start(kFirstStart) && trainer.start(kSecondStart);
  trainer.mend();
  const bool resumed = trainer.start(kLastStart);
  if (done && resumed) trainer.expect_no_leftovers();
  ++tally.cases;
  tally.with_errors += trainer.errors() > 0 ? 1 : 0;
  ++(resumed ? tally.same_bits : tally.refused);
}

// How many operations a rank makes, of all kinds and of data.
std::pair<std::uint64_t, std::uint64_t> operations_of(std::uint32_t rank, const Shape& shape) {
  static constexpr Kind kNothing{"nothing", FaultOn::any, FaultKind::fail, EIO};
  Trainer trainer({&kNothing, rank, FaultPlan::kForEver, 1, &shape});
  EXPECT_TRUE(trainer.start(kFirstStart) && trainer.start(kSecondStart));
  const FaultPlan& faults = trainer.machines().faults(rank);
  return {faults.operations(), faults.data_operations()};
}

TEST(FailingOperations, EndWithTheSameBitsOrAnErrorThatNamesWhatIsLost) {
  std::vector<Case> cases;
  for (const Shape& shape : kShapes)
    for (const std::uint32_t rank : {0u, 1u}) {
      const auto [all, data] = operations_of(rank, shape);
      EXPECT_GT(data, 50u);
      for (const Kind& kind : kKinds)
        for (const std::uint64_t count : {std::uint64_t{1}, FaultPlan::kForEver})
          for (std::uint64_t at = 0; at < (kind.on == FaultOn::data ? data : all); ++at)
            cases.push_back({&kind, rank, at, count, &shape});
    }
  // A prime stride meets every kind at other operations.
  const std::uint64_t stride = brief_or(97, 1);
  Tally tally;
  in_parallel(cases.size() / stride, [&](std::uint64_t i) { run_case(cases[i * stride], tally); });
  std::printf(
      "failing operations: %llu cases, %llu met an error, %llu ended with the same bits, "
      "%llu refused by name\n",
      static_cast<unsigned long long>(tally.cases),
      static_cast<unsigned long long>(tally.with_errors),
      static_cast<unsigned long long>(tally.same_bits),
      static_cast<unsigned long long>(tally.refused));
  EXPECT_EQ(tally.same_bits + tally.refused, tally.cases);
  EXPECT_GT(tally.with_errors, tally.cases / 3);
}

}  // namespace
}  // namespace ebb::test::failing_operations_tests
