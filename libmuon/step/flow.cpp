#include "ebb/libmuon/step/flow.h"

#include <algorithm>
#include <utility>

#include "ebb/libswap/sys/thread.h"
#include "ebb/libswap/sys/when_memory.h"

namespace ebb::libmuon {
namespace {

// What a rank says of a chunk; the smallest counts.
constexpr std::int64_t kSpoiled = -1, kSweeping = 0, kFailed = 1, kSwept = 2;
// And of a piece that may come early.
constexpr std::int64_t kNotReady = 0, kElsewhere = 1, kReady = 2;
// A rank that is destroyed alone waits no longer than that for others to meet it.
constexpr std::chrono::milliseconds kEarlySlice(1000);

double seconds(Flow::Clock::duration duration) {
  return std::chrono::duration<double>(duration).count();
}

}  // namespace

Flow::Flow(Communicator& ranks, Early early) : ranks_(ranks), early_(std::move(early)) {
  ended_.why = Error{Code::state, "no weights were handed out yet", "call install_weights()"};
}

Result<std::unique_ptr<Flow>> Flow::start(Communicator& ranks, Early early) {
  std::unique_ptr<Flow> flow(new Flow(ranks, std::move(early)));
  EBB_TRY_ASSIGN(flow->meeting_thread_,
                 libswap::start_thread([self = flow.get()] { self->serve_meetings(); }));
  EBB_TRY_ASSIGN(flow->sweeping_thread_,
                 libswap::start_thread([self = flow.get()] { self->serve_sweeps(); }));
  return flow;
}

Flow::~Flow() {
  wait();
  {
    const libswap::MutexLock lock(mutex_);
    closing_ = true;
    changed_.notify_all();
  }
  for (std::thread* thread : {&meeting_thread_, &sweeping_thread_})
    if (thread->joinable()) thread->join();
}

template <typename Body>
auto Flow::or_lost(const Body& body) {
  bool ended = false;
  auto answer = libswap::or_no_memory([&] {
    auto answered = body();
    ended = true;
    return answered;
  });
  if (ended) return answer;
  const libswap::MutexLock lock(mutex_);
  lost_ = spoiled_ = true;
  return answer;
}

template <typename Body>
auto Flow::or_apart(const Body& body) {
  auto answer = or_lost(body);
  bool lost = false;
  {
    const libswap::MutexLock lock(mutex_);
    lost = lost_;
  }
  if (!answer && lost) libswap::when_memory([this] { ranks_.abort(); });
  return answer;
}

// Each run once.
void Flow::serve_sweeps() {
  for (std::uint64_t seen = 0;; ++seen) {
    {
      const libswap::MutexLock lock(mutex_);
      while (!closing_ && runs_ == seen) changed_.wait(mutex_);
      if (closing_) return;
    }
    run_sweep();
  }
}

// Each run once, and what comes early between them.
void Flow::serve_meetings() {
  for (std::uint64_t seen = 0;;) {
    bool run = false;
    {
      const libswap::MutexLock lock(mutex_);
      while (!closing_ && runs_ == seen && !early_due()) changed_.wait(mutex_);
      if (closing_) return;
      run = !early_due();
      early_under_way_ = !run;
    }
    if (run) {
      run_meetings();
      ++seen;
      continue;
    }
    Result<bool> brought = or_apart([this] { return bring_early(); });
    const libswap::MutexLock lock(mutex_);
    early_under_way_ = false;
    if (!brought)
      early_error_ = std::move(brought).error();
    else if (*brought)
      ++early_came_;
    else
      early_called_off_ = true;
    changed_.notify_all();
  }
}

void Flow::begin(Work work) {
  const libswap::MutexLock lock(mutex_);
  EBB_CHECK(!under_way_);
  work_ = std::move(work);
  voted_ = came_ = in_ = swept_ = out_ = 0;
  spoiled_ = lost_ = false;
  ended_ = {};
  begin_run();
}

void Flow::go_on() {
  const libswap::MutexLock lock(mutex_);
  EBB_CHECK(!under_way_ && ended_.how == Ended::How::stopped);
  ended_ = {.not_out = std::move(ended_.not_out)};
  begin_run();
}

void Flow::begin_run() {
  under_way_ = sweeping_ = true;
  ending_ = false;
  ++runs_;
  changed_.notify_all();
}

Flow::Ended Flow::wait() {
  const libswap::MutexLock lock(mutex_);
  while (under_way_) changed_.wait(mutex_);
  return ended_;
}

bool Flow::ends_within(std::chrono::milliseconds limit) {
  const auto end = Clock::now() + limit;
  const libswap::MutexLock lock(mutex_);
  while (under_way_ && Clock::now() < end) changed_.wait_for(mutex_, end - Clock::now());
  return !under_way_;
}

void Flow::ready_early(std::size_t pieces) {
  const libswap::MutexLock lock(mutex_);
  early_ready_ = pieces;
  changed_.notify_all();
}

std::size_t Flow::came_early() const {
  const libswap::MutexLock lock(mutex_);
  return early_came_;
}

void Flow::drop_early() {
  const libswap::MutexLock lock(mutex_);
  EBB_CHECK(!under_way_);
  dropping_ = true;
  changed_.notify_all();
  while (early_under_way_ || early_due()) changed_.wait(mutex_);
  dropping_ = early_called_off_ = false;
  early_ready_ = early_came_ = 0;
  changed_.notify_all();
}

// A work that was stopped still needs what came for it, and brings the rest itself.
bool Flow::early_due() const {
  const bool stopped = !under_way_ && ended_.how == Ended::How::stopped;
  return early_came_ < early_.count && !early_called_off_ && !early_error_ && !stopped;
}

std::int64_t Flow::early_vote() const {
  if (under_way_ || dropping_) return kElsewhere;
  return early_ready_ > early_came_ ? kReady : kNotReady;
}

Result<> Flow::ranks_meet() const {
  const libswap::MutexLock lock(mutex_);
  return early_error_ ? *early_error_ : Result<>();
}

// False: called off.
Result<bool> Flow::bring_early() {
  EBB_TRY_ASSIGN(const std::int64_t all, meet(&Flow::early_vote, kEarlySlice));
  if (all != kReady) return false;
  EBB_TRY(early_.bring(came_early()));
  return true;
}

Result<> Flow::wait_for_out(std::size_t chunk) {
  const libswap::MutexLock lock(mutex_);
  while (out_ <= chunk && under_way_ && !ended_.not_out) changed_.wait(mutex_);
  if (out_ > chunk) return {};
  if (ended_.not_out) return *ended_.not_out;
  return ended_.why ? *ended_.why : Result<>();  // whole, and of what hands nothing out
}

std::size_t Flow::next_to_sweep() const {
  const libswap::MutexLock lock(mutex_);
  return swept_;
}

bool Flow::may_sweep(std::size_t chunk) {
  const libswap::MutexLock lock(mutex_);
  if (chunk == work_.chunks) return false;
  while (in_ <= chunk && !ending_) changed_.wait(mutex_);
  if (ending_) return false;
  sweeps_since_ = Clock::now();
  return true;
}

void Flow::swept() {
  const libswap::MutexLock lock(mutex_);
  rest_sweep();
  ++swept_;
  changed_.notify_all();
}

void Flow::spoil() {
  const libswap::MutexLock lock(mutex_);
  spoiled_ = true;
}

void Flow::rest_sweep() {
  if (sweeps_since_) sweeping_s_ += seconds(Clock::now() - *sweeps_since_);
  sweeps_since_.reset();
}

double Flow::sweeping_s() const {
  const libswap::MutexLock lock(mutex_);
  return sweeping_s_ + (sweeps_since_ ? seconds(Clock::now() - *sweeps_since_) : 0);
}

void Flow::run_sweep() {
  Result<> answer = or_lost(work_.sweep);
  const libswap::MutexLock lock(mutex_);
  sweep_answer_ = std::move(answer);
  rest_sweep();
  sweeping_ = false;
  changed_.notify_all();
}

void Flow::run_meetings() {
  Ended ended = come_to_rest(or_apart([this] { return meet_for_all_chunks(); }));
  const libswap::MutexLock lock(mutex_);
  ended.not_out = std::move(ended_.not_out);
  ended_ = std::move(ended);
  under_way_ = false;
  if (ended_.how == Ended::How::whole) {
    early_called_off_ = false;
    if (work_.uses_up_early) early_ready_ = early_came_ = 0;
  }
  changed_.notify_all();
}

Result<Flow::Ended::How> Flow::meet_for_all_chunks() {
  EBB_TRY(ranks_meet());
  for (; voted_ < work_.chunks; ++voted_) {
    while (came_ < std::min(voted_ + 2, work_.chunks)) {
      EBB_TRY(work_.in(came_));
      ++came_;
      const libswap::MutexLock lock(mutex_);
      in_ = came_;
      changed_.notify_all();
    }
    EBB_TRY_ASSIGN(const std::int64_t all, meet(&Flow::vote));
    if (all == kSpoiled) return Ended::How::spoiled;
    if (all == kFailed) return Ended::How::stopped;
    if (work_.between) EBB_TRY(work_.between(voted_));
    hand_out(voted_);
  }
  return Ended::How::whole;
}

// Until nobody's answer is 0; the smallest of them. They meet in every quarter of their limit, and
// in every `slice` if that is not 0.
Result<std::int64_t> Flow::meet(std::int64_t (Flow::*mine)() const,
                                std::chrono::milliseconds slice) {
  const std::chrono::milliseconds quarter = ranks_.limit() / 4;
  if (slice.count() == 0 || (quarter.count() != 0 && quarter < slice)) slice = quarter;
  for (;;) {
    std::int64_t answer = 0;
    {
      const libswap::MutexLock lock(mutex_);
      const auto end = Clock::now() + slice;
      for (;;) {
        if (closing_) return Error{Code::peer, "this rank ends"};
        answer = (this->*mine)();
        if (answer != 0 || (slice.count() != 0 && Clock::now() >= end)) break;
        if (slice.count() == 0)
          changed_.wait(mutex_);
        else
          changed_.wait_for(mutex_, end - Clock::now());
      }
    }
    EBB_TRY_ASSIGN(const std::int64_t all, ranks_.agree(answer));
    if (all != 0) return all;
  }
}

std::int64_t Flow::vote() const {
  if (swept_ > voted_) return kSwept;
  if (sweeping_) return kSweeping;
  return spoiled_ ? kSpoiled : kFailed;
}

std::int64_t Flow::at_rest() const { return sweeping_ ? 0 : 1; }

// A chunk's weights that could not be handed out do not hold back the others' state.
void Flow::hand_out(std::size_t chunk) {
  {
    const libswap::MutexLock lock(mutex_);
    if (ended_.not_out) return;
  }
  Result<> out = work_.out(chunk);
  const libswap::MutexLock lock(mutex_);
  if (out)
    ++out_;
  else
    ended_.not_out = std::move(out).error();
  changed_.notify_all();
}

// Of all ranks, where they still meet: whoever is called next finds them all there.
Flow::Ended Flow::come_to_rest(Result<Ended::How> how) {
  {
    const libswap::MutexLock lock(mutex_);
    ending_ = true;
    changed_.notify_all();
  }
  const Ended::How all = how ? *how : Ended::How::apart;
  Result<> met = how ? Result<>() : std::move(how).error();
  if (met && all != Ended::How::whole)
    if (auto rest = or_apart([this] { return meet(&Flow::at_rest); }); !rest)
      met = std::move(rest).error();
  const libswap::MutexLock lock(mutex_);
  while (sweeping_) changed_.wait(mutex_);
  Ended ended{.begun = in_ > 0, .at = Clock::now()};
  if (!met) {
    ended.how = lost_ ? Ended::How::lost : Ended::How::apart;
    ended.why = std::move(met).error();
  } else if (lost_ || all != Ended::How::whole) {
    ended.how = lost_ ? Ended::How::lost : all;
    ended.why = sweep_answer_ ? libswap::when_memory([this] {
      return Error{Code::peer, "another rank failed while " + work_.doing,
                   "its own message says why"};
    })
                              : std::move(sweep_answer_).error();
  }
  return ended;
}

}  // namespace ebb::libmuon
