// Streaming: a matrix in Gram form whose update is never whole. Panels along its long side lie in a
// ring, and a step passes over its momentum several times (StreamedMatrix): first the momentum
// moves, then its panels are made again, for X X^T and at last for O, which is applied panel by
// panel. Gradients come with each pass.
//
// Panels of a tall matrix are rows, one behind the other:
//   M | M | ... | M0 M1 W0 M2 W1 ... M(n) W(n-1) W(n)
// M is the momentum's tiles that reach a panel, W those of the masters that end with one.
//
// Those of a wide one are strips of columns, a part of every row:
//   M | M0 M1 .. | ... | M0 M1 W0 M2 W1 ... M(n) W(n-1) W(n)
// Each strip has passes of its own, over the tiles that have some of it. Masters leave with the
// last of them.
#pragma once

#include <cstdint>
#include <vector>

#include "ebb/formats/layout/box.h"
#include "ebb/libmuon/kernels/products.h"
#include "ebb/libmuon/plan/columns.h"
#include "ebb/libmuon/plan/slice.h"
#include "ebb/libmuon/plan/visit.h"
#include "ebb/libmuon/spec/blocks.h"

namespace ebb::libmuon {

struct Streaming {
  // Of a ring: what the visits between M(p+1) and W(p) touch, where no tile is longer than a panel;
  // of strips, the one that is made and the one that is used.
  static constexpr std::uint64_t kPanels = 4, kStripsAtOnce = 2;
  // More of them take less memory, and visit every tile more often: so many where rows are short,
  // any number where a strip is still so many tiles long.
  static constexpr std::uint64_t kMostStrips = 8, kTilesLong = 4;

  std::uint32_t passes = 0;  // over the momentum; 0: the update is whole
  std::uint32_t units = 0;   // of a panel: kSumUnit elements each
  // Of a wide matrix, and of a strip of it; else 0.
  std::uint32_t cols = 0, strip_cols = 0;

  explicit operator bool() const { return passes > 0; }
  bool wide() const { return cols > 0; }
  std::uint32_t strips() const { return wide() ? (cols - 1) / strip_cols + 1 : 0; }
  std::uint64_t panel() const { return units * kSumUnit; }  // elements: of whole rows, or a strip
  std::uint64_t ring() const { return (wide() ? kStripsAtOnce : kPanels) * panel(); }

  // Over such tiles.
  std::uint32_t passes_over(TileKind kind) const {
    return kind == TileKind::momentum ? passes : kind == TileKind::masters ? strips() : 0;
  }
  // Of a wide one. In which pass the strip was made that an action makes or applies: masters have a
  // pass for each strip, from 1 on.
  std::uint32_t made_in(Action action, std::uint32_t pass) const {
    return action == Action::finish ? passes - strips() + pass : pass;
  }
  // Behind the first pass: which strip is made in one, and how many passes over all were before.
  std::uint32_t strip(std::uint32_t pass) const { return (pass - 2) % strips(); }
  std::uint32_t rounds_before(std::uint32_t pass) const { return (pass - 2) / strips(); }
  // That strip, of a matrix of so many elements.
  Slice strip_made_in(std::uint32_t pass, std::uint64_t elems) const;
  // Whether the action has anything to do with these elements of the matrix.
  bool needs(Action action, std::uint32_t pass, FlatRange some, std::uint64_t elems) const;
  // Whether masters are handed out in this pass over them.
  bool hands_out(std::uint32_t pass) const { return !wide() || pass == strips(); }
};

// A part of what a step does with an item: that action on tiles of such elements, which
// begin at a place on the line of StepOrder.
struct Leg {
  Action action = Action::prepare;
  std::uint32_t pass = 1;
  FlatRange elems;
  std::uint64_t place = 0;
};

// The most elements of a tile, by what is visited.
struct TileElems {
  std::uint64_t momentum = 1, masters = 1;
};

// What of a matrix is streamed, in so many passes over all of it: panels as short as its tiles
// allow, or strips, wider where `room` elements hold them. Nothing where one strip would be all.
Streaming streaming_of(std::uint32_t passes, const Block& matrix, const TileElems& tiles,
                       std::uint64_t room = 0);
// In order; they follow each other on the line from `place` on.
std::vector<Leg> legs_of(const Streaming& streaming, std::uint64_t elems, const TileElems& tiles,
                         std::uint64_t place);

}  // namespace ebb::libmuon
