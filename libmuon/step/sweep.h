// Sweep: what happens to a rank's state, tile after tile, as the cache brings it. No communication.
//
// An update is a stream of tiles: momentum tiles make an item's U, a chain of the pool turns it
// into O in the same place while the tiles of its neighbours are paged, master tiles apply it.
// There is room for the updates of two items, or of one (OwnerOrder).
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <span>

#include "ebb/libmuon/plan/chunks.h"
#include "ebb/libswap/pager/stream.h"

namespace ebb::libmuon {

class Sweep {
 public:
  // What a sweep takes from its engine: of ranges that this rank owns, in the present chunk.
  struct Ports {
    std::function<std::span<const float>(const Transit&)> gradient;
    // Where new weights go; empty: nobody asked for them.
    std::function<std::span<float>(const Transit&)> weight;
    std::function<std::uint64_t(std::uint32_t param)> steps_taken;  // before this one
  };
  // All are borrowed; learning rates of the model may change between updates.
  struct Parts {
    const ModelSpec& model;
    const StatePlan& plan;
    const Chunks& chunks;
    libswap::IoQueue& io;
    libswap::Store& store;
    libswap::Pool& pool;
    libswap::Trace* trace = nullptr;
  };
  static Result<std::unique_ptr<Sweep>> open(const Parts& parts, const libswap::TileBudget& budget,
                                             Ports ports);
  ~Sweep();  // waits for its I/O and its chains
  // With `threads` that compute.
  static std::uint64_t workspace_bytes(const ModelSpec& model, const StatePlan& plan,
                                       std::uint32_t threads);

  // Fills the tiles of a new store; `fill` gets each tile's number and its zeros.
  Result<> create(std::uint64_t step,
                  const std::function<Result<>(std::uint64_t, std::span<std::byte>)>& fill);
  // Hands out all weights, chunk by chunk: `out` follows each.
  Result<> look(const std::function<Result<>(std::size_t chunk, const Result<>& looked)>& out);

  // Gradients times `grad_scale` into the state, which is at `step` afterwards.
  void begin_update(std::uint64_t step, float grad_scale);
  // To the end of a chunk, or to the first error of the disk: then again, after go_on(), with the
  // same bits. Chunks in ascending order.
  Result<> update(std::size_t chunk);
  void go_on();

  libswap::TileCache& cache() { return *cache_; }

 private:
  Sweep(const Parts& parts, Ports ports);
  Result<> update_tile();
  void momentum(const TileEntry& entry, std::span<float> tile);
  void orthogonalize(std::uint32_t item);
  std::span<float> update_of(std::uint32_t item);
  void master(const TileEntry& entry, std::span<float> tile);
  void adam(const TileEntry& entry, std::span<float> tile);
  void hand_out(const StatePlan::Span& span, std::span<const float> weights);
  void wait(const libswap::Event& event);
  template <typename Spec>
  const Spec& spec_of(std::uint32_t param) const;
  Result<> look_to(libswap::Stream& stream, std::size_t end);

  const Parts parts_;
  const Ports ports_;
  std::unique_ptr<libswap::TileCache> cache_;
  std::unique_ptr<libswap::Stream> updates_;
  libswap::AlignedBuffer room_;               // of updates: U of an item, later its O
  std::array<libswap::Event, 2> orthogonal_;  // item i uses i % 2: passes when U has become O
  libswap::AlignedBuffer scratch_;            // of one Newton-Schulz at a time
  float grad_scale_ = 0;
};

}  // namespace ebb::libmuon
