// Item: what is computed at once, and what becomes one: matrices of an owner, packed. Values.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "ebb/libmuon/plan/model.h"
#include "ebb/libmuon/plan/streaming.h"
#include "ebb/libmuon/spec/blocks.h"

namespace ebb::libmuon {

// A range of a parameter inside an item's stream of elements.
struct ItemPart {
  std::uint32_t param = 0;
  FlatRange range;               // of the row-major parameter
  std::uint64_t item_first = 0;  // where it begins in the item
};

// What is computed at once: one large matrix, or several small ones, of one parameter or of more;
// or this rank's AdamW ranges. Of second moments, which are elements of states of their own: all of
// this rank's.
struct Item {
  std::vector<ItemPart> parts;
  std::uint64_t elems = 0;
  Streaming streaming = {};

  // Of its U and O, as far as they are there at once.
  std::uint64_t update_elems() const { return streaming ? streaming.ring() : elems; }
};

// A range of a Muon parameter that an item holds whole: its matrices, as far as they lie apart and
// no block of momentum is in two of them.
struct ItemRange {
  FlatRange range;
  std::uint64_t moments = 0;  // second ones
  Streaming streaming = {};
};

// The parts of an item's elements; none of them lies before its part `first_part`.
std::vector<ItemPart> parts_of(const Item& item, FlatRange elems, std::size_t first_part = 0);

// Matrices of one shape and group, one behind the other in an item, or one whose rows lie apart:
// they may be computed as one batch.
struct ItemBatch {
  std::uint32_t param = 0;  // the first
  Block matrix;
  std::uint64_t count = 1;
  std::uint64_t item_first = 0;  // where it begins in the item
};
// None of an item of AdamW ranges.
std::vector<ItemBatch> batches_of(const ModelSpec& model, const Item& item);

// Packs an owner's matrices (StatePlan::matrix_runs), in the order of the model: those that are
// small share an item as long as one tile holds them, so that many of them do not pay a tile each,
// and one their second moments. Each takes whole blocks of its own there. Those that have masters
// share none with those that have not, and what is streamed shares none.
class ItemPacker {
 public:
  // Of a tile: elements, in blocks of so many, and second moments.
  struct Room {
    std::uint64_t elems = 0, block = 1, moments = 0;
  };
  explicit ItemPacker(const Room& room) : room_(room) {}
  void add(std::uint32_t param, const ItemRange& whole, Out out);
  std::vector<Item> items() && { return std::move(items_); }

 private:
  Room room_;
  std::vector<Item> items_;
  std::uint64_t elems_ = 0, moments_ = 0;  // what the last one takes of its room
  Out out_ = Out::weights;                 // of the last one
};

}  // namespace ebb::libmuon
