// Flow: the chunks of a step on their way through this rank, on two threads beside the caller's:
//   what all ranks do together   in 0 | in 1 | vote 0, out 0, in 2 | vote 1, out 1, in 3 | ...
//   this rank's sweep                 | 0 0 0 | 1 1 1 1 1 1 1 1 1 1 | 2 2 2 ...
// The calls of the first are the same on all ranks, in the same order. A vote takes place when all
// ranks have swept the chunk, or failed to; until then they meet in every quarter of their limit,
// so that a disk may be as slow as it likes. A rank whose sweep fails takes part in everything
// before its vote, so all stop at the same chunk; one that is ahead comes to rest between two
// chunks. Each keeps its place, and go_on() begins there.
//
// Between two works the first thread brings what may come early, piece by piece, each when it is
// ready on all ranks; until then they meet as for a vote. A work that is begun on some rank where
// the next piece is not ready calls the rest off, for all.
//
// Where a thread finds no memory in the middle of a work, who knows what is half done: the work is
// lost, on this rank, and invalid on the others.
#pragma once

#include <array>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "ebb/libmuon/comm/communicator.h"
#include "ebb/libmuon/step/early_pieces.h"
#include "ebb/libmuon/step/sweep_state.h"
#include "ebb/libswap/sys/mutex.h"

namespace ebb::libmuon {

class Flow {
 public:
  using Clock = std::chrono::steady_clock;
  struct Work {
    std::size_t chunks = 1;
    std::function<Result<>(std::size_t chunk)> in = {}, out = {};  // collective; there at begin()
    // Collective, between a chunk's vote and its `out`, or empty: what the next chunks are made of,
    // whatever became of earlier ones' `out`. Its error is like one of `in`.
    std::function<Result<>(std::size_t chunk)> between = {};
    // This rank's own, all chunks: for (c = next_to_sweep(); may_sweep(c); ++c) { ... swept(); }
    std::function<Result<>()> sweep = {};
    std::string doing;  // what the sweep does, for messages
    EarlyPieces::Left leaves_early = EarlyPieces::Left::what_came;
  };
  // What may come between two works: 0, 1, ..., count - 1.
  struct Early {
    std::size_t count = 0;
    std::function<Result<>(std::size_t piece)> bring = {};  // collective
  };
  struct Ended {
    enum class How : std::uint8_t {
      whole,
      stopped,  // a sweep failed, on some rank: go_on()
      invalid,  // for good, as it said by invalidate()
      apart,    // the ranks cannot meet any more
      lost,     // memory was not there: like invalid, whatever began
    };
    How how = How::whole;
    bool begun = false;            // the first chunk's gradients came
    std::optional<Error> why;      // unless whole: of this rank, else Code::peer
    std::optional<Error> not_out;  // the first chunk that could not be handed out: none since then
    Clock::time_point at;
  };

  // `ranks` is borrowed, and nobody else's.
  static Result<std::unique_ptr<Flow>> start(Communicator& ranks, Early early);
  ~Flow();  // waits for what is under way
  Flow(const Flow&) = delete;
  Flow& operator=(const Flow&) = delete;

  // One thread: begin, wait, go_on. REQUIRES of begin() and go_on(): wait() has returned.
  void begin(Work work);
  void go_on();
  Ended wait();
  // Whether wait() would return at once, `limit` from now at the latest. Any thread.
  bool ends_within(std::chrono::milliseconds limit);

  // The first `pieces` of what may come early are ready on this rank. Any thread.
  void ready_early(std::size_t pieces);
  // How many of them have come; does not change while a work is under way.
  std::size_t came_early() const;
  // All ranks, at the same point of their calls: waits for what is coming, which is then to come
  // again.
  void drop_early();

  // Until the chunk is handed out. Any thread.
  Result<> wait_for_out(std::size_t chunk);

  // For Work::sweep.
  std::size_t next_to_sweep() const;
  // Waits for its gradients. False: come to rest, or there is no such chunk.
  bool may_sweep(std::size_t chunk);
  void swept();
  // It is about to fail, and nobody may go on with what it did.
  void invalidate();
  // Seconds that this rank has swept so far. Any thread.
  double sweeping_s() const;

 private:
  enum class Stage : std::uint8_t {
    idle,
    under_way,
    ending,  // the sweep comes to rest
  };
  Flow(Communicator& ranks, Early early);
  void serve_sweeps();
  void serve_meetings();
  void begin_run() EBB_REQUIRES(mutex_);
  // What `body` answers; Code::no_memory, and lost, where it finds none.
  template <typename Body>
  auto or_lost(const Body& body);
  template <typename Body>
  auto or_apart(const Body& body);  // of the thread that meets: the others are not to wait for it
  void run_sweep();
  void run_meetings();
  Result<Ended::How> meet_for_all_chunks();
  Result<> bring_in(std::size_t chunks);
  std::size_t chunks_in() const;
  Result<std::int64_t> meet(std::int64_t (Flow::*mine)() const,
                            std::chrono::milliseconds slice = {});
  std::int64_t vote() const EBB_REQUIRES(mutex_);
  std::int64_t at_rest() const EBB_REQUIRES(mutex_);
  std::int64_t early_vote() const EBB_REQUIRES(mutex_);
  bool early_due() const EBB_REQUIRES(mutex_);
  Result<bool> next_early();
  Result<> ranks_meet() const;
  void hand_out(std::size_t chunk);
  Ended come_to_rest(Result<Ended::How> how);

  // Constant; the work changes only while nothing is under way.
  Communicator& ranks_;
  const std::function<Result<>(std::size_t piece)> bring_early_;
  Work work_;

  // Of the thread that meets.
  std::size_t voted_ = 0;  // chunks

  // Guarded by mutex_.
  mutable libswap::Mutex mutex_;
  libswap::Condition changed_;
  EarlyPieces early_ EBB_GUARDED_BY(mutex_);
  SweepState sweep_ EBB_GUARDED_BY(mutex_);
  std::uint64_t runs_ EBB_GUARDED_BY(mutex_) = 0;  // begun or gone on with
  bool closing_ EBB_GUARDED_BY(mutex_) = false;
  Stage stage_ EBB_GUARDED_BY(mutex_) = Stage::idle;
  std::size_t in_ EBB_GUARDED_BY(mutex_) = 0;   // chunks that came
  std::size_t out_ EBB_GUARDED_BY(mutex_) = 0;  // that were handed out
  Ended ended_ EBB_GUARDED_BY(mutex_);

  std::array<std::thread, 2> threads_;  // that meets, that sweeps
};

}  // namespace ebb::libmuon
