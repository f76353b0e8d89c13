// Streaming: a tall matrix in Gram form whose update is never whole. Panels of its rows lie in a
// ring, and a step passes over its momentum several times (StreamedMatrix):
//   M | M | ... | M0 M1 W0 M2 W1 ... M(n) W(n-1) W(n)
// first the momentum moves, then its panels are made again, for X X^T and at last for O, which is
// applied panel by panel. M is the momentum's tiles that reach a panel, W those of the masters that
// end with one. Gradients come with each pass.
#pragma once

#include <cstdint>
#include <vector>

#include "ebb/formats/layout/box.h"
#include "ebb/libmuon/kernels/products.h"
#include "ebb/libmuon/plan/columns.h"

namespace ebb::libmuon {

struct Streaming {
  // Of a ring: what the visits between M(p+1) and W(p) touch, where no tile is longer than a panel.
  static constexpr std::uint64_t kPanels = 4;

  std::uint32_t passes = 0;  // over the momentum; 0: the update is whole
  std::uint32_t units = 0;   // of a panel: kSumUnit elements each

  explicit operator bool() const { return passes > 0; }
  std::uint64_t panel() const { return units * kSumUnit; }  // elements, of whole rows
  std::uint64_t ring() const { return kPanels * panel(); }
};

// A part of what a step does with an item: visits of that kind to tiles of such elements, which
// begin at a place on the line of OwnerOrder.
struct Leg {
  Visit visit = Visit::prepare;
  std::uint32_t pass = 1;
  FlatRange elems;
  std::uint64_t place = 0;
};

// The most elements of a tile, by what is visited.
struct TileElems {
  std::uint64_t momentum = 1, masters = 1;
};

// What of a matrix is streamed: panels as short as its tiles allow.
Streaming streaming_of(std::uint32_t passes, std::uint64_t cols, const TileElems& tiles);
// In order; they follow each other on the line from `place` on.
std::vector<Leg> legs_of(const Streaming& streaming, std::uint64_t elems, const TileElems& tiles,
                         std::uint64_t place);

}  // namespace ebb::libmuon
