// Pager: a rank's tiles between memory and the store, in one known order, under a hard byte budget.
//
// Every sweep visits tile 0, 1, ... n-1 once. R tiles stay resident for ever, spread evenly over
// the order; the others stream through F frames: read ahead strictly in order, written back behind
// the visit. The next sweep's head is read as soon as frames are free, so a step starts warm. Bytes
// per update sweep are exactly 2 * paged * tile_bytes.
//
// One thread sweeps and cuts; finish_cut() may run on another. Every wait is on an event earlier in
// the order, so F = 1 is enough. An I/O error of a sweep is sticky: reopen the store to recover. A
// resident tile that a cut could not write costs that cut and nothing else.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "ebb/libswap/store/store.h"
#include "ebb/libswap/sys/aligned_buffer.h"
#include "ebb/libswap/sys/mutex.h"
#include "ebb/libswap/trace.h"

namespace ebb::libswap {

struct PagerStats {
  std::uint64_t read_bytes = 0;     // of tiles visited
  std::uint64_t written_bytes = 0;  // by sweeps
  std::uint64_t cut_bytes = 0;      // resident tiles written for a cut
  double stall_read_s = 0;          // the sweep waited for a page-in or a free frame
  double stall_cut_s = 0;           // the sweep waited because of a cut (write before modify)
};

class Pager {
 public:
  // How a budget is spent. All tiles resident needs no frame.
  struct Split {
    std::uint64_t resident = 0;
    std::uint64_t frames = 0;
    std::uint64_t bytes(std::uint64_t tile_bytes) const { return (resident + frames) * tile_bytes; }
  };
  // Fails (Code::no_memory) below one tile, naming the smallest budget that works.
  static Result<Split> split(std::uint64_t tiles, std::uint64_t tile_bytes,
                             std::uint64_t budget_bytes);

  static Result<std::unique_ptr<Pager>> open(IoQueue& io, Store& store, const Split& split,
                                             Trace* trace);
  ~Pager();  // waits for its I/O
  Pager(const Pager&) = delete;
  Pager& operator=(const Pager&) = delete;

  enum class Mode : std::uint8_t {
    create,  // nothing is read; the visitor fills the (zeroed) tile, which is then written
    update,  // read, visit, write back
    look,    // read, visit; the visitor must not write
  };
  using Visitor = std::function<Result<>(std::uint64_t tile, std::span<std::byte> bytes)>;
  // `step` is what the tiles are at after the sweep.
  Result<> sweep(Mode mode, std::uint64_t step, const Visitor& visitor);

  // Reads the resident tiles of a recovered store. REQUIRES: before any sweep.
  Result<> load_residents();

  // Marks the cut: the tiles' present contents belong to it. REQUIRES: between sweeps,
  // store.can_cut().
  void begin_cut();
  // Any one thread, once after begin_cut(): writes dirty residents at background priority and waits
  // for the cut's writes in flight. A sweep that reaches a resident first waits for its write.
  // After an error the cut is to be abandoned; sweeps and later cuts go on.
  Result<> finish_cut();

  PagerStats stats() const;

 private:
  enum class State : std::uint8_t { on_disk, reading, in_memory, writing };
  struct TileState {
    State state = State::on_disk;
    bool resident = false;
    bool dirty = false;        // resident only: newer than its slot
    bool cut_pending = false;  // resident only: must be written before it is modified
    bool fresh = false;        // just read: to be verified at the visit
    std::uint64_t frame = 0;
    std::uint64_t step = 0;  // of the contents
  };

  Pager(IoQueue& io, Store& store, const Split& split, Trace* trace);
  std::span<std::byte> frame(std::uint64_t index);
  struct Arrived {
    std::span<std::byte> bytes;
    bool fresh = false;  // to be verified
  };
  Result<std::span<std::byte>> arrive(Mode mode, std::uint64_t tile);
  Result<Arrived> bring(Mode mode, std::uint64_t tile);
  Result<> leave(Mode mode, std::uint64_t tile, std::uint64_t step, std::span<std::byte> bytes);
  Result<> write_behind(std::uint64_t tile, std::uint64_t step, std::span<std::byte> bytes);
  Result<> write_cut_tile(std::uint64_t tile, std::uint64_t step, std::span<std::byte> bytes);
  Result<> write_cut_tiles();
  void start_reads() EBB_REQUIRES(mutex_);
  void transferred(Lane lane, std::uint64_t tile, Trace::Clock::time_point begin);
  void read_done(std::uint64_t tile, Result<> result);
  void fail(Error error) EBB_REQUIRES(mutex_);
  Result<> sticky() const EBB_REQUIRES(mutex_);
  void wait(double& stall, const char* what, const std::function<bool()>& ready)
      EBB_REQUIRES(mutex_);

  IoQueue& io_;
  Store& store_;
  Trace* const trace_;
  const std::uint64_t tile_bytes_;
  const Rank rank_;
  const std::uint64_t tile_count_;
  std::vector<std::uint64_t> paged_;  // tile numbers, in order
  AlignedBuffer memory_;

  mutable Mutex mutex_;
  Condition changed_;
  std::vector<TileState> tiles_ EBB_GUARDED_BY(mutex_);
  std::vector<std::uint64_t> free_frames_ EBB_GUARDED_BY(mutex_);
  // Index into paged_, of the tile to be read next.
  std::uint64_t next_read_ EBB_GUARDED_BY(mutex_) = 0;
  bool reading_ EBB_GUARDED_BY(mutex_) = false;          // reads may be started
  std::uint64_t in_flight_ EBB_GUARDED_BY(mutex_) = 0;   // requests whose completion calls us
  std::uint64_t cut_writes_ EBB_GUARDED_BY(mutex_) = 0;  // in flight, of the present cut
  std::uint64_t epoch_ EBB_GUARDED_BY(mutex_) = 0;       // number of cuts begun
  std::optional<Error> error_ EBB_GUARDED_BY(mutex_);
  PagerStats stats_ EBB_GUARDED_BY(mutex_);
};

}  // namespace ebb::libswap
