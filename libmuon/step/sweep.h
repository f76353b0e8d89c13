// Sweep: what happens to a rank's state, tile after tile, as the cache brings it, on the device
// that computes. No communication.
//
// An update is a stream of tiles: momentum tiles make an item's U, master tiles apply its O; where
// the trainer keeps the masters it is handed out as it is, in their place in the schedule. Where
// both lie, and who makes O of U, is MatrixUpdates' matter.
//
// Borrows the cache, and all that Parts has.
// Threading: one thread at a time: that which opens and fills a store, then the one that sweeps.
#pragma once

#include <functional>
#include <memory>
#include <span>

#include "ebb/libmuon/kernels/table.h"
#include "ebb/libmuon/plan/chunks.h"
#include "ebb/libmuon/step/absent_gradients.h"
#include "ebb/libmuon/step/chunk_exchange.h"
#include "ebb/libmuon/step/named_states.h"
#include "ebb/libmuon/step/step_count.h"
#include "ebb/libmuon/step/whole_updates.h"
#include "ebb/libswap/pager/lift.h"
#include "ebb/libswap/pager/stream.h"

namespace ebb::libmuon {

class Sweep {
 public:
  // All are borrowed; learning rates of the model may change between updates.
  struct Parts {
    const ModelSpec& model;
    const StatePlan& plan;
    const Chunks& chunks;
    libswap::Pool& pool;
    Kernels& kernels;
    ChunkExchange& exchange;  // where gradients and weights of a chunk are
    const StepCount& steps;   // before this one
    Bf16 bf16 = Bf16::emulated;
  };
  // Opens a sweep of the state in `cache`, which outlives it.
  static Result<std::unique_ptr<Sweep>> open(const Parts& parts, libswap::TileCache& cache,
                                             const WholeUpdates::Need& need);
  ~Sweep();  // waits for its kernels

  // Fills the tiles of a new store; `fill` gets each tile's number and its zeros.
  Result<> create(std::uint64_t step,
                  const std::function<Result<>(std::uint64_t, std::span<std::byte>)>& fill);
  // Between two chunks of what goes through all weights.
  using Between = std::function<Result<>(std::size_t chunk, const Result<>& done)>;
  // Hands out all weights, chunk by chunk: `out` follows each.
  Result<> look(const Between& out);
  // Of which parameters; empty: of all.
  using Of = std::function<bool(std::uint32_t param)>;
  // What is bound of masters into its tiles, which are at `step` then. REQUIRES: some of it is.
  Result<> keep(const Of& of, std::uint64_t step, const Between& next);
  // Masters take weights, as TakeRange says, from where the exchange finds them; their tiles are
  // at `step` then.
  Result<> take(const Of& of, std::uint64_t step, const Between& next);

  // States to where the exchange has them, portion by portion; and from there, rounded to what they
  // are kept as: their tiles are at `step` then.
  Result<> read(const NamedStates& states, const Between& next);
  Result<> write(const NamedStates& states, std::uint64_t step, const Between& next);

  // Gradients times `grad_scale` into the state, which is at `step` afterwards; but for what is
  // untouched: tiles of nothing else are not visited. `absent` is borrowed until the end.
  void begin_update(std::uint64_t step, float grad_scale, const AbsentGradients& absent);
  // To the end of a chunk, or to the first error of the disk: then again, after go_on(), with the
  // same bits. Chunks in ascending order. Code::state, and non_finite() from then on, where what
  // Newton-Schulz made is not finite: it has reached no weight, but there is no going on.
  Result<> update(std::size_t chunk);
  bool non_finite() const { return non_finite_; }
  void go_on();
  const libswap::TileCache& cache() const { return cache_; }

 private:
  Sweep(const Parts& parts, libswap::TileCache& cache);
  Result<> make_visits(std::size_t chunk);
  Result<> make_visit(std::size_t chunk);
  // Weights, or updates, on their way out of a visit.
  struct Leaving {
    libswap::Buffer from, to;
  };
  std::vector<libswap::Buffer> columns_of(const TileEntry& entry,
                                          const libswap::Buffer& tile) const;
  libswap::Event work(const Visited& visit, std::vector<Leaving>& out);
  libswap::Event decay(const Visited& visit);
  libswap::Event prepare(const Visited& visit);
  libswap::Event finish(const Visited& visit, std::vector<Leaving>& out);
  libswap::Event local(const Visited& visit, std::vector<Leaving>& out);
  std::vector<std::uint64_t> untouched_tiles() const;
  std::vector<StatePlan::Span> touched(const TileEntry& entry) const;
  PrepareRange prepare_range(const Visited& visit, const StatePlan::Span& span,
                             const libswap::Buffer& gradient,
                             const MatrixUpdates::Piece& piece) const;
  // Where kernels write the weights of a span; they travel on behind.
  libswap::Buffer out_of(std::size_t chunk, const StatePlan::Span& span, libswap::Lift::Visit& lift,
                         std::vector<Leaving>& out) const;
  // A span's master, or its low half, where kernels work on it; the high half; where they write its
  // weights, which travel on behind.
  struct Master {
    libswap::Buffer w, high, out;
  };
  Master master_of(const Visited& visit, const StatePlan::Span& span,
                   std::vector<Leaving>& out) const;
  Master bound_master_of(const Visited& visit, const Transit& range,
                         std::vector<Leaving>& out) const;
  // Behind the work of a visit its weights travel on. The event passes behind that and `tile`: then
  // nobody uses the visit's room, or what is staged for it.
  libswap::Event end_visit(libswap::Lift::Visit& lift, const std::vector<Leaving>& out,
                           const libswap::Event& done, const libswap::Event& tile);
  // A visit's end is waited for before its chunk ends: what is staged makes room for another then.
  void before_chunk_ends(const libswap::Event& visit_ends);
  void wait_for_chunk();
  // Where a visit could not be made, too: what the others use is the caller's again then.
  Result<> end_chunk(const Result<>& visits_made);
  std::vector<StatePlan::Span> spans_of(const Of& of, const TileEntry& entry) const;
  libswap::Event keep_bits(std::span<const OutRange> ranges);
  // By chunk, in the order of the schedule: chunks of weights are those of a step.
  using Tiles = std::vector<std::vector<std::uint64_t>>;
  template <typename Take>
  void for_masters(const Take& take) const;
  Tiles tiles_with(const NamedStates& states) const;
  // Which of the states a tile holds.
  std::vector<std::size_t> held(const NamedStates& states, const TileEntry& entry) const;
  // take(elements of the tile's column of state i, where the trainer's are) of a portion's.
  template <typename Take>
  void for_parts(const NamedStates& states, std::size_t i, std::size_t portion,
                 const TileEntry& entry, const libswap::Buffer& column, const Take& take) const;
  Tiles tiles_with_weights(const Of& of) const;
  Tiles tiles_with_masters(const Of& of) const;
  // The event passes when nobody uses the tile, or what is staged for the chunk, any more.
  using Visiting =
      std::function<libswap::Event(std::size_t chunk, const libswap::Stream::Lease& lease)>;
  Result<> walk(const Tiles& all, libswap::TileCache::Use use, std::uint64_t step,
                const Visiting& visit, const Between& between);
  // Changes tiles where kernels work on their columns: the event passes when they have.
  using Change = std::function<libswap::Event(std::size_t chunk, const TileEntry& entry,
                                              const std::vector<libswap::Buffer>& columns,
                                              libswap::Lift::Visit& lift)>;
  // Of a tile in the cache's memory, when `behind` has passed.
  libswap::Event change_tile(std::size_t chunk, const libswap::Stream::Lease& lease,
                             const Change& change, const libswap::Event& behind);
  Result<> change(const Tiles& tiles, std::uint64_t step, const Change& change,
                  const Between& between);
  Result<> device_works() const;

  // Constant after open().
  const Parts parts_;
  std::unique_ptr<WholeUpdates> whole_;  // null where they are elsewhere
  MatrixUpdates* matrices_ = nullptr;

  // Synchronises itself.
  libswap::TileCache& cache_;

  // Of the thread that sweeps.
  libswap::Stream updates_;
  std::unique_ptr<libswap::Lift> lift_;
  bool non_finite_ = false;
  std::vector<libswap::Event> of_chunk_;  // not yet seen to have passed
  float grad_scale_ = 0;
  const AbsentGradients* absent_ = nullptr;
};

}  // namespace ebb::libmuon
