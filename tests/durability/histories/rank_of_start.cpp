#include "tests/durability/histories/rank_of_start.h"

#include <bit>
#include <cerrno>
#include <chrono>
#include <thread>

namespace ebb::test {
namespace {

using libmuon::StepResult;

constexpr int kPatience = 8;
constexpr std::uint64_t kMostTurns = 60;

bool nothing_is_stopped(const Error& error) {
  return error.message.find("no step is stopped") != std::string::npos;
}

}  // namespace

RankOfStart::RankOfStart(OfStart& of, libmuon::Communicator& ranks, libswap::IoQueue& io,
                         libswap::FaultPlan& faults)
    : of_(of),
      ranks_(ranks),
      io_(io),
      faults_(faults),
      shared_(of.start.seed),
      mine_(of.start.seed + 1 + index_of(ranks.rank())),
      trainer_(of.meaning, of.start, of.config, ranks) {}

Result<> RankOfStart::run() {
  EBB_TRY(open());
  for (std::uint64_t turns = 0; engine().step_count() < of_.start.until; ++turns) {
    if (turns == kMostTurns) return Error{Code::state, "it comes to no end"};
    EBB_TRY(turn());
    if (engine().step_count() == of_.start.until && of_.start.ends_committed) EBB_TRY(commit());
  }
  EBB_TRY(unpin());
  EBB_TRY(mend());
  if (speaks()) of_.committed = engine().committed_step();
  return ranks_.agree(0).has_value() ? Result<>() : Error{Code::peer, "another rank is gone"};
}

Result<> RankOfStart::open() {
  EBB_TRY_ASSIGN(auto swap, libswap::SwapDirectory::open(io_, of_.directory, ranks_));
  directories_.push_back(std::move(swap));
  EBB_TRY(trainer_.open(io_, *directories_.back()));
  const std::uint64_t step = engine().step_count();
  if (step < of_.committed)
    return Error{Code::state, compose("it is at step {}, and {} was committed: {}", step,
                                      of_.committed, engine().origin())};
  trainer_.take_masters(of_.wanted.masters.at(step));
  return same_bits();
}

Result<> RankOfStart::turn() {
  EBB_TRY(set_learning_rates(engine(), of_.meaning));
  const std::uint64_t step = engine().step_count() + 1;
  EBB_TRY(trainer_.hand_in(mine_));
  if (of_.start.wanders && shared_.below(8) == 0) EBB_TRY(snapshot());
  // Where that was answered by going back, what was handed in is forgotten.
  if (engine().step_count() + 1 != step) return {};
  break_disk();
  EBB_TRY_ASSIGN(const After after, finish(this->step()));
  if (after == After::went_back) return {};
  if (shared_.below(3) == 0) EBB_TRY(snapshot());
  return of_.start.wanders ? wander() : Result<>();
}

Result<StepResult> RankOfStart::step() {
  return shared_.below(2) == 0 ? step_asking_for_weights() : engine().step(kHistoryArgs);
}

// On another thread, beside the step or behind it.
Result<StepResult> RankOfStart::step_asking_for_weights() {
  const Masters& wanted = of_.wanted.made.at(engine().step_count() + 1);
  const bool waits_first = shared_.below(2) == 0;
  EBB_TRY(engine().begin_step(kHistoryArgs));
  Result<> weights;
  std::string differing;
  std::thread asker([&] {
    for (std::uint32_t param = 0; param < trainer_.params() && weights; ++param) {
      if (!trainer_.here(param)) continue;
      weights = engine().weights_ready(param);
      if (!weights || of_.meaning.out == libmuon::Out::update) continue;
      differing = trainer_.differing(param, wanted);
      if (!differing.empty()) break;
    }
  });
  if (!waits_first) asker.join();
  auto done = engine().wait_step();
  if (waits_first) asker.join();
  if (!differing.empty()) return Error{Code::corrupt, "behind weights_ready(): " + differing};
  if (done && !weights) return weights.error();
  return done;
}

template <typename T>
Result<bool> RankOfStart::all_well(const Result<T>& mine, std::string_view what) {
  if (!mine && mine.error().code == Code::corrupt) return mine.error();
  EBB_TRY_ASSIGN(const std::int64_t worst, ranks_.agree(mine ? 1 : 0));
  EBB_TRY_ASSIGN(const std::int64_t best, ranks_.agree(mine ? -1 : 0));
  if (worst == 1) return true;
  count(&Tally::errors);
  if (best != 0)
    return Error{Code::state, compose("{}: an error on one rank and none on another: {}", what,
                                      mine ? std::string("none here") : mine.error().message)};
  return false;
}

Result<RankOfStart::After> RankOfStart::finish(Result<StepResult> made) {
  std::string first;
  for (int tries = 0; tries < kPatience; ++tries) {
    EBB_TRY_ASSIGN(const bool well, all_well(made, "a step"));
    if (well) {
      EBB_TRY(check(*made));
      return After::done;
    }
    if (first.empty()) first = made.error().message;
    EBB_TRY(mend());
    const std::uint64_t way = shared_.below(8);
    if (way == 0 && can_go_back()) {
      EBB_TRY(go_back());
      return After::went_back;
    }
    if (way == 1 || tries + 2 == kPatience) EBB_TRY(move());
    made = again();
  }
  return made ? Result<After>(After::done)
              : Error{Code::state,
                      "a step that does not go on: " + first + ", then " + made.error().message};
}

// A step that was refused before anything moved is made again, of the same gradients.
Result<StepResult> RankOfStart::again() {
  auto made = engine().continue_step();
  if (!made && nothing_is_stopped(made.error())) return engine().step(kHistoryArgs);
  if (made) count(&Tally::continued);
  return made;
}

Result<> RankOfStart::check(const StepResult& made) {
  const std::uint64_t step = engine().step_count();
  count(&Tally::steps);
  if (made.skipped) return Error{Code::corrupt, compose("step {} was skipped", step)};
  if (std::bit_cast<std::uint64_t>(made.norm) !=
      std::bit_cast<std::uint64_t>(of_.wanted.norms.at(step)))
    return Error{Code::corrupt, compose("the norm of step {} is {}, not {}", step,
                                        exactly(made.norm), exactly(of_.wanted.norms[step]))};
  trainer_.add_updates(step);
  EBB_TRY(write_weights());
  return same_bits();
}

// Goes on where a disk failed, until all is taken, or it went back.
Result<> RankOfStart::write_weights() {
  if (!trainer_.write(engine().step_count())) return {};
  for (int tries = 0; tries < kPatience; ++tries) {
    EBB_TRY_ASSIGN(const bool well, all_well(trainer_.take_written(), "taking weights"));
    if (well) return {};
    EBB_TRY(mend());
    const std::uint64_t way = shared_.below(8);
    if (way == 0 && can_go_back()) return go_back();
    if (way == 1 || tries + 2 == kPatience) EBB_TRY(move());
  }
  return Error{Code::state, "weights that were written cannot be taken"};
}

Result<> RankOfStart::same_bits() {
  const std::uint64_t step = engine().step_count();
  const std::string found = trainer_.differing(of_.wanted.masters.at(step));
  if (found.empty()) return {};
  return Error{Code::corrupt, compose("at step {}: {}", step, found)};
}

// One that some rank could not write is given up, and training goes on.
Result<> RankOfStart::snapshot() {
  const auto begun = engine().snapshot();
  EBB_TRY_ASSIGN(const bool well, all_well(begun, "a snapshot"));
  if (well) return {};
  EBB_TRY(mend());
  EBB_TRY_ASSIGN(const std::int64_t lost, ranks_.agree(begun.error().code == Code::state ? 0 : 1));
  return lost == 0 ? leave_lost_store() : Result<>();
}

// Until what it has is committed, or it went back.
Result<> RankOfStart::commit() {
  const std::uint64_t step = engine().step_count();
  std::string last = "no snapshot was begun";
  for (int tries = 0; tries < kPatience; ++tries) {
    EBB_TRY(unpin());
    EBB_TRY(snapshot());
    if (engine().step_count() != step) return {};
    const auto waited = engine().wait_snapshot();
    EBB_TRY_ASSIGN(const bool well, all_well(waited, "a snapshot's end"));
    last = well ? compose("generation {} is that of step {}", *waited, engine().committed_step())
                : waited.error().message;
    if (!well) EBB_TRY(mend());
    if (!well && waited.error().code == Code::state) EBB_TRY(leave_lost_store());
    if (engine().step_count() != step) return {};
    if (!well || engine().committed_step() != step) continue;
    count(&Tally::committed);
    EBB_TRY(pin());
    return unpin();
  }
  return Error{Code::state, compose("step {} cannot be committed: {}", step, last)};
}

Result<> RankOfStart::wander() {
  switch (shared_.below(16)) {
    case 0:
      return can_go_back() ? go_back() : Result<>();
    case 1:
      return move();
    case 2:
    case 3:
    case 4:
      return pinned_ ? unpin() : engine().committed_generation() > 0 ? pin() : Result<>();
    case 5:
    case 6:
      return read_by_name();
    default:
      return {};
  }
}

// Masters, and another state of all that have it, wherever they lie.
Result<> RankOfStart::read_by_name() {
  EBB_TRY(read(shared_.below(2) == 0 ? "momentum_buffer" : "exp_avg_sq"));
  return read("master");
}

Result<> RankOfStart::read(const std::string& state) {
  if (state == "momentum_buffer" && of_.meaning.momentum == DType::i8) return {};
  const std::uint64_t step = engine().step_count();
  std::string differing;
  const auto read = trainer_.read(state, of_.wanted.stored.at(step), differing);
  EBB_TRY_ASSIGN(const bool well, all_well(read, "reading a state"));
  if (!well) return mend();
  count(&Tally::read);
  if (differing.empty()) return {};
  return Error{Code::corrupt, compose("read at step {}: {}", step, differing)};
}

// A step that went to another disk before it ended has no generation there yet.
bool RankOfStart::can_go_back() { return engine().committed_generation() > 0; }

Result<> RankOfStart::go_back() {
  EBB_TRY(unpin());
  EBB_TRY(mend());
  EBB_TRY(engine().abandon_step());
  count(&Tally::went_back);
  trainer_.take_masters(of_.wanted.masters.at(engine().step_count()));
  return same_bits();
}

Result<> RankOfStart::move() {
  EBB_TRY(mend());
  const std::filesystem::path to = of_.directory.parent_path() / compose("swap-{}", shared_.next());
  EBB_TRY_ASSIGN(auto other, libswap::SwapDirectory::open(io_, to, ranks_));
  directories_.push_back(std::move(other));
  EBB_TRY(engine().save_to(*directories_.back()));
  count(&Tally::moved);
  EBB_TRY(ranks_.agree(0));
  if (speaks()) of_.directory = to;
  EBB_TRY(ranks_.agree(0));
  return {};
}

Result<> RankOfStart::leave_lost_store() {
  return shared_.below(2) == 0 && can_go_back() ? go_back() : move();
}

Result<> RankOfStart::pin() {
  EBB_TRY_ASSIGN(auto pinned, engine().open_export());
  pinned_.emplace(std::move(pinned));
  count(&Tally::pinned);
  return {};
}

// It holds what it held when it was pinned, whatever was committed since.
Result<> RankOfStart::unpin() {
  EBB_TRY_ASSIGN(const std::int64_t any, ranks_.agree(pinned_ ? 1 : 0));
  if (any == 0) return {};
  const Result<> compared = speaks() ? compare_stored(*pinned_) : Result<>();
  EBB_TRY(libswap::agree_all(ranks_, compared, "comparing what is stored"));
  pinned_.reset();
  return {};
}

Result<> RankOfStart::compare_stored(const libmuon::PinnedCheckpoint& pinned) {
  EBB_TRY_ASSIGN(const auto checkpoint, pinned.describe());
  const std::string found = test::differing(tensors_of(*checkpoint),
                                            of_.wanted.stored.at(pinned.step()), of_.config.model);
  if (found.empty()) return {};
  return Error{Code::corrupt, compose("the generation of step {}: {}", pinned.step(), found)};
}

// One rank's, at some operation from now on; it may be met much later, or never.
void RankOfStart::break_disk() {
  using libswap::FaultKind;
  using libswap::FaultOn;
  if (of_.start.failing == Failing::nothing || shared_.below(2) == 0) return;
  const bool sync = of_.start.failing == Failing::disk_and_sync && shared_.below(4) == 0;
  libswap::Fault fault;
  fault.on = sync ? FaultOn::sync : shared_.of<FaultOn>({FaultOn::read, FaultOn::write});
  fault.at = shared_.below(sync ? 3 : 14);
  fault.count = shared_.of<std::uint64_t>({1, 3, 40});
  fault.kind = sync ? FaultKind::fail
                    : shared_.of<FaultKind>({FaultKind::fail, FaultKind::fail,
                                             FaultKind::short_transfer, FaultKind::late});
  fault.delay = std::chrono::milliseconds(1);
  fault.error = shared_.of<int>({EIO, ENOSPC});
  if (shared_.below(ranks_.world()) == index_of(ranks_.rank())) faults_.add(fault);
}

Result<> RankOfStart::mend() {
  faults_.clear();
  EBB_TRY(ranks_.agree(0));
  return {};
}

}  // namespace ebb::test
