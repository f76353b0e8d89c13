// MatrixUpdates: U and O of matrices, as the visits of a sweep find them. Where a rank has its
// matrices whole they are made beside its own tiles (WholeUpdates); where state lies on shards a
// visit has this rank's part of what is made elsewhere (Updates). A sweep is opened with one of
// them.
//
// Threading: of the thread that sweeps.
#pragma once

#include <cstdint>
#include <vector>

#include "ebb/libmuon/plan/state_plan.h"
#include "ebb/libswap/pager/lift.h"

namespace ebb::libmuon {

// What a visit works on.
struct Visited {
  std::size_t chunk = 0;
  const Visit& scheduled;
  const TileEntry& entry;
  std::vector<StatePlan::Span> touched;  // spans of the tile that the step changes
  std::vector<libswap::Buffer> columns;  // of the tile, where kernels work on them
  libswap::Lift::Visit& lift;
};

class MatrixUpdates {
 public:
  MatrixUpdates() = default;
  MatrixUpdates(const MatrixUpdates&) = delete;
  MatrixUpdates& operator=(const MatrixUpdates&) = delete;
  virtual ~MatrixUpdates() = default;

  // Elements of the visited item that are prepared at once, in order: update() says where U of each
  // goes, prepared() follows before the next.
  virtual std::vector<FlatRange> portions(const Visited& visit) {
    return {{visit.entry.first, visit.entry.count}};
  }
  // A range of a parameter, and where its U or O lies.
  struct Piece {
    FlatRange range;
    libswap::Buffer update;
  };
  // Of a span's elements in the portion.
  virtual std::vector<Piece> update(const Visited& visit, const StatePlan::Span& span,
                                    const FlatRange& portion) = 0;
  virtual void prepared(const Visited& visit, const FlatRange& portion,
                        const libswap::Event& made) = 0;

  // Where what masters add to a span's gradient waits for its U: in U's place, or apart from it
  // where U is narrower. `apart` is empty in the first case.
  virtual libswap::Buffer decay(const Visited& visit, const StatePlan::Span& span) = 0;
  virtual libswap::Buffer separate_decay(const Visited& visit, const StatePlan::Span& span) = 0;

  // What the visit does with the second moments in its tile; passes when it is done.
  virtual libswap::Event move_moments(const Visited& visit) = 0;

  // Code::state where what Newton-Schulz made of the visited item is not finite. Before its weights
  // move, and before the visit's tile is there.
  virtual Result<> check(const Visit& visit) = 0;
  // O of a span.
  virtual std::vector<Piece> result(const Visited& visit, const StatePlan::Span& span) = 0;
};

}  // namespace ebb::libmuon
