#include "ebb/libmuon/step/flow.h"

#include <algorithm>
#include <utility>

#include "ebb/libswap/sys/thread.h"
#include "ebb/libswap/sys/when_memory.h"

namespace ebb::libmuon {
namespace {

// What a rank says of a chunk; the smallest counts.
constexpr std::int64_t kInvalid = -1, kSweeping = 0, kFailed = 1, kSwept = 2;
// And of a piece that may come early.
constexpr std::int64_t kNotReady = 0, kElsewhere = 1, kReady = 2;
// A rank that is destroyed alone waits no longer than that for others to meet it.
constexpr std::chrono::milliseconds kEarlySlice(1000);

}  // namespace

Flow::Flow(Communicator& ranks, Early early)
    : ranks_(ranks), bring_early_(std::move(early.bring)), early_(early.count) {
  ended_.why = Error{Code::state, "no weights were handed out yet", "call install_weights()"};
}

Result<std::unique_ptr<Flow>> Flow::start(Communicator& ranks, Early early) {
  std::unique_ptr<Flow> flow(new Flow(ranks, std::move(early)));
  EBB_TRY_ASSIGN(flow->threads_[0],
                 libswap::start_thread([self = flow.get()] { self->serve_meetings(); }));
  EBB_TRY_ASSIGN(flow->threads_[1],
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
  for (std::thread& thread : threads_)
    if (thread.joinable()) thread.join();
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
  sweep_.lose();
  return answer;
}

template <typename Body>
auto Flow::or_apart(const Body& body) {
  auto answer = or_lost(body);
  bool lost = false;
  {
    const libswap::MutexLock lock(mutex_);
    lost = sweep_.lost();
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
      if (!run) early_.begin();
    }
    if (run) {
      run_meetings();
      ++seen;
      continue;
    }
    Result<bool> brought = or_apart([this] { return next_early(); });
    const libswap::MutexLock lock(mutex_);
    early_.end(std::move(brought));
    changed_.notify_all();
  }
}

void Flow::begin(Work work) {
  const libswap::MutexLock lock(mutex_);
  EBB_CHECK(stage_ == Stage::idle);
  work_ = std::move(work);
  voted_ = in_ = out_ = 0;
  sweep_.begin();
  ended_ = {};
  begin_run();
}

void Flow::go_on() {
  const libswap::MutexLock lock(mutex_);
  EBB_CHECK(stage_ == Stage::idle && ended_.how == Ended::How::stopped);
  ended_ = {.not_out = std::move(ended_.not_out)};
  begin_run();
}

void Flow::begin_run() {
  stage_ = Stage::under_way;
  sweep_.start();
  ++runs_;
  changed_.notify_all();
}

Flow::Ended Flow::wait() {
  const libswap::MutexLock lock(mutex_);
  while (stage_ != Stage::idle) changed_.wait(mutex_);
  return ended_;
}

bool Flow::ends_within(std::chrono::milliseconds limit) {
  const auto end = Clock::now() + limit;
  const libswap::MutexLock lock(mutex_);
  while (stage_ != Stage::idle && Clock::now() < end) changed_.wait_for(mutex_, end - Clock::now());
  return stage_ == Stage::idle;
}

void Flow::ready_early(std::size_t pieces) {
  const libswap::MutexLock lock(mutex_);
  early_.ready(pieces);
  changed_.notify_all();
}

std::size_t Flow::came_early() const {
  const libswap::MutexLock lock(mutex_);
  return early_.came();
}

void Flow::drop_early() {
  const libswap::MutexLock lock(mutex_);
  EBB_CHECK(stage_ == Stage::idle);
  early_.drop();
  changed_.notify_all();
  while (early_.under_way() || early_due()) changed_.wait(mutex_);
  early_.forget();
  changed_.notify_all();
}

// A work that was stopped still needs what came for it, and brings the rest itself.
bool Flow::early_due() const {
  const bool stopped = stage_ == Stage::idle && ended_.how == Ended::How::stopped;
  return early_.due() && !stopped;
}

std::int64_t Flow::early_vote() const {
  if (stage_ != Stage::idle || early_.dropping()) return kElsewhere;
  return early_.next_is_ready() ? kReady : kNotReady;
}

Result<> Flow::ranks_meet() const {
  const libswap::MutexLock lock(mutex_);
  return early_.ranks_meet();
}

// False: called off.
Result<bool> Flow::next_early() {
  EBB_TRY_ASSIGN(const std::int64_t all, meet(&Flow::early_vote, kEarlySlice));
  if (all != kReady) return false;
  EBB_TRY(bring_early_(came_early()));
  return true;
}

Result<> Flow::wait_for_out(std::size_t chunk) {
  const libswap::MutexLock lock(mutex_);
  while (out_ <= chunk && stage_ != Stage::idle && !ended_.not_out) changed_.wait(mutex_);
  if (out_ > chunk) return {};
  if (ended_.not_out) return *ended_.not_out;
  return ended_.why ? *ended_.why : Result<>();  // whole, and of what hands nothing out
}

std::size_t Flow::next_to_sweep() const {
  const libswap::MutexLock lock(mutex_);
  return sweep_.chunks();
}

bool Flow::may_sweep(std::size_t chunk) {
  const libswap::MutexLock lock(mutex_);
  if (chunk == work_.chunks) return false;
  while (in_ <= chunk && stage_ == Stage::under_way) changed_.wait(mutex_);
  if (stage_ != Stage::under_way) return false;
  sweep_.turn_to_next();
  return true;
}

void Flow::swept() {
  const libswap::MutexLock lock(mutex_);
  sweep_.swept();
  changed_.notify_all();
}

void Flow::invalidate() {
  const libswap::MutexLock lock(mutex_);
  sweep_.invalidate();
}

double Flow::sweeping_s() const {
  const libswap::MutexLock lock(mutex_);
  return sweep_.seconds();
}

void Flow::run_sweep() {
  Result<> answer = or_lost(work_.sweep);
  const libswap::MutexLock lock(mutex_);
  sweep_.end(std::move(answer));
  changed_.notify_all();
}

void Flow::run_meetings() {
  Ended ended = come_to_rest(or_apart([this] { return meet_for_all_chunks(); }));
  const libswap::MutexLock lock(mutex_);
  ended.not_out = std::move(ended_.not_out);
  ended_ = std::move(ended);
  stage_ = Stage::idle;
  if (ended_.how == Ended::How::whole) early_.work_ended(work_.leaves_early);
  changed_.notify_all();
}

Result<Flow::Ended::How> Flow::meet_for_all_chunks() {
  EBB_TRY(ranks_meet());
  for (; voted_ < work_.chunks; ++voted_) {
    EBB_TRY(bring_in(std::min(voted_ + 2, work_.chunks)));
    EBB_TRY_ASSIGN(const std::int64_t all, meet(&Flow::vote));
    if (all == kInvalid) return Ended::How::invalid;
    if (all == kFailed) return Ended::How::stopped;
    if (work_.between) EBB_TRY(work_.between(voted_));
    hand_out(voted_);
  }
  return Ended::How::whole;
}

// The next chunks, until so many have come.
Result<> Flow::bring_in(std::size_t chunks) {
  for (std::size_t came = chunks_in(); came < chunks; ++came) {
    EBB_TRY(work_.in(came));
    const libswap::MutexLock lock(mutex_);
    in_ = came + 1;
    changed_.notify_all();
  }
  return {};
}

std::size_t Flow::chunks_in() const {
  const libswap::MutexLock lock(mutex_);
  return in_;
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
  if (sweep_.chunks() > voted_) return kSwept;
  if (sweep_.running()) return kSweeping;
  return sweep_.invalid() ? kInvalid : kFailed;
}

std::int64_t Flow::at_rest() const { return sweep_.running() ? 0 : 1; }

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
    stage_ = Stage::ending;
    changed_.notify_all();
  }
  const Ended::How all = how ? *how : Ended::How::apart;
  Result<> met = how ? Result<>() : std::move(how).error();
  if (met && all != Ended::How::whole)
    if (auto rest = or_apart([this] { return meet(&Flow::at_rest); }); !rest)
      met = std::move(rest).error();
  const libswap::MutexLock lock(mutex_);
  while (sweep_.running()) changed_.wait(mutex_);
  Ended ended{.begun = in_ > 0, .at = Clock::now()};
  if (!met) {
    ended.how = sweep_.lost() ? Ended::How::lost : Ended::How::apart;
    ended.why = std::move(met).error();
  } else if (sweep_.lost() || all != Ended::How::whole) {
    ended.how = sweep_.lost() ? Ended::How::lost : all;
    Result<> answer = sweep_.take_answer();
    ended.why = answer ? libswap::when_memory([this] {
      return Error{Code::peer, "another rank failed while " + work_.doing,
                   "its own message says why"};
    })
                       : std::move(answer).error();
  }
  return ended;
}

}  // namespace ebb::libmuon
