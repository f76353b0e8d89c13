#include "ebb/libswap/pager/snapshots.h"

#include <atomic>
#include <thread>
#include <utility>

#include "ebb/libswap/sys/thread.h"
#include "ebb/libswap/sys/when_memory.h"

namespace ebb::libswap {

// Its thread is there before the cut, so that a cut never lacks one, and waits for the word.
struct Snapshots::Pending {
  enum class Word : std::uint8_t { none, go, never };
  ~Pending() {
    if (word == Word::none) say(Word::never);
    if (thread.joinable()) thread.join();
  }
  void say(Word what) {
    word = what;
    word.notify_one();
  }

  std::uint64_t generation = 0;
  std::uint64_t step = 0;
  MakeManifest manifest;
  std::atomic<Word> word = Word::none;
  std::atomic<bool> done = false;  // `result` is final
  Result<> result;
  std::thread thread;
};

Snapshots::Snapshots(TileCache& cache, Store& store, Ranks& ranks, Trace* trace)
    : cache_(cache), store_(store), ranks_(ranks), trace_(trace) {}
Snapshots::~Snapshots() = default;

void Snapshots::make_durable(Pending& snapshot) {
  snapshot.word.wait(Pending::Word::none);
  if (snapshot.word == Pending::Word::never) return;
  snapshot.result = or_no_memory([&]() -> Result<> {
    EBB_TRY(cache_.finish_cut());
    const TraceSpan span(trace_, ranks_.rank(), Lane::commit, "prepare");
    return store_.prepare(snapshot.manifest());
  });
  snapshot.done = true;
}

Result<> Snapshots::settle(Mode mode) {
  if (!pending_) return {};
  const TraceSpan span(trace_, ranks_.rank(), Lane::commit, "agree");
  EBB_TRY_ASSIGN(const std::int64_t room, ranks_.agree(store_.room_to_sweep() ? 1 : 0));
  if (mode == Mode::wait || room == 0)
    EBB_TRY(ranks_.together("writing a snapshot", [this]() -> Result<> {
      pending_->thread.join();
      return {};
    }));
  EBB_TRY_ASSIGN(const std::int64_t all_done, ranks_.agree(pending_->done.load() ? 1 : 0));
  if (all_done == 0) return {};
  if (pending_->thread.joinable()) pending_->thread.join();
  const std::unique_ptr<Pending> settled = std::move(pending_);
  EBB_TRY_ASSIGN(const auto outcome, store_.agree(ranks_, settled->result));
  switch (outcome) {
    case Store::Settled::committed:
      committed_step_ = settled->step;
      abandoned_.reset();
      break;
    case Store::Settled::put_off:
      ++put_off_;
      break;
    case Store::Settled::abandoned:
      abandoned_ = !settled->result
                       ? settled->result.error()
                       : Error{Code::peer,
                               compose("generation {} was abandoned because another rank could not "
                                       "write it",
                                       settled->generation),
                               "its own message says why; the previous generation still resumes"};
  }
  return {};
}

Result<> Snapshots::cut(std::uint64_t step, MakeManifest manifest) {
  auto next = std::make_unique<Pending>();
  auto thread = start_thread([this, &snapshot = *next] { make_durable(snapshot); });
  const Result<> started = thread ? Result<>() : thread.error();
  if (thread) next->thread = std::move(*thread);
  EBB_TRY(agree_all(ranks_, started, "starting a snapshot"));
  pending_ = std::move(next);
  pending_->manifest = std::move(manifest);
  pending_->step = step;
  pending_->generation = store_.cut(step);
  cache_.begin_cut();
  pending_->say(Pending::Word::go);
  return {};
}

Result<bool> Snapshots::begin(std::uint64_t step, MakeManifest manifest,
                              const std::function<Result<>()>& before_cut) {
  EBB_TRY(settle(Mode::poll));
  EBB_TRY(agree_all(ranks_, store_.usable(), "beginning a snapshot"));
  const bool room = store_.can_cut().has_value();
  EBB_TRY_ASSIGN(const std::int64_t all_can, ranks_.agree(!pending_ && room ? 1 : 0));
  if (all_can == 0) {
    if (!pending_ && !room) ++put_off_;
    return false;
  }
  if (before_cut) EBB_TRY(before_cut());
  EBB_TRY(cut(step, std::move(manifest)));
  return true;
}

Result<std::uint64_t> Snapshots::wait() {
  EBB_TRY(settle(Mode::wait));
  EBB_TRY(agree_all(ranks_, store_.usable(), "waiting for a snapshot"));
  if (abandoned_) return *abandoned_;
  return store_.committed_generation();
}

}  // namespace ebb::libswap
