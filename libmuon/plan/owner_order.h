// OwnerOrder: in which order a step visits an owner's matrices, and how much room their updates
// need. M is an item's momentum, W its masters, in elements on one line:
//   M0 M1 W0 M2 W1 ...   where the updates of two neighbours fit into the room: each has the paging
//                        of both beside its Newton-Schulz
//   M0 W0 M1 W1 ...      where they do not
// One that is streamed has legs of its own in place of M W (Streaming), and shares them with none.
// A function of the owner's items and one number that all ranks know.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
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

// Packs an owner's matrices (StatePlan::wholes), in the order of the model: those that are small
// share an item as long as one tile holds them, so that many of them do not pay a tile each, and
// one their second moments. Each takes whole blocks of its own there. Those that have masters share
// none with those that have not, and what is streamed shares none.
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

class OwnerOrder {
 public:
  // Room for two of the largest updates, if that is at most `most_room` elements, else for one.
  OwnerOrder(std::span<const Item> items, std::uint64_t most_room, const TileElems& tiles);

  std::size_t items() const { return momentum_.size(); }
  // Of the line: all legs of all items.
  std::uint64_t length() const { return length_; }
  // Of an item of those that it was made for, in order.
  std::vector<Leg> legs(const Item& item, std::size_t number) const;
  // Where on the line the element of a leg of that action is.
  std::uint64_t place(std::size_t item, Action action, std::uint32_t pass,
                      std::uint64_t element) const;

  // Elements of all updates that are under way at once, and where an item's lies among them.
  std::uint64_t room() const { return room_; }
  std::uint64_t update(std::size_t item) const { return updates_[item]; }

 private:
  std::vector<std::uint64_t> momentum_, masters_, updates_;  // by item
  std::map<std::size_t, std::vector<Leg>> streamed_;         // those instead of the first two
  std::uint64_t length_ = 0;
  std::uint64_t room_ = 0;
};

}  // namespace ebb::libmuon
