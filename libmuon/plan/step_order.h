// StepOrder: when a step visits what of some matrices, and how much room their updates need. M is
// an item's momentum, W its masters, in elements at places on one line. Where an owner has them
// whole:
//   M0 M1 W0 M2 W1 ...   where the updates of two neighbours fit into the room: each has the paging
//                        of both beside its Newton-Schulz
//   M0 W0 M1 W1 ...      where they do not
// One that is streamed has legs of its own in place of M W (Streaming), and shares them with none.
// Where state lies on shards the line has turns of one length (ShardOrder): M in one of them, W in
// a later one.
//
// Chunks cut the line into as many equal pieces on every rank. A function of items and numbers that
// all ranks know.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "ebb/libmuon/plan/item.h"

namespace ebb::libmuon {

class StepOrder {
 public:
  // Of an owner's items. Room for two of the largest updates, if that is at most `most_room`
  // elements, else for one.
  StepOrder(std::span<const Item> items, std::uint64_t most_room, const TileElems& tiles);
  // Of parts of matrices. Their updates have their room elsewhere.
  struct Turns {
    std::vector<std::size_t> momentum;  // in which turn it moves, by item
    std::size_t between = 0;            // and the masters so many later
    std::size_t count = 0;
  };
  StepOrder(std::span<const Item> items, const Turns& turns);

  // Of the line: all legs of all items.
  std::uint64_t length() const { return length_; }
  // Of the pieces, of so many.
  std::uint64_t per_chunk(std::size_t chunks) const {
    return std::max<std::uint64_t>(1, formats::div_ceil(length_, chunks));
  }
  // Of an item of those that it was made for, in order.
  std::vector<Leg> legs(const Item& item, std::size_t number) const;
  // Where on the line the element of a leg of that action is.
  std::uint64_t place(std::size_t item, Action action, std::uint32_t pass,
                      std::uint64_t element) const;

  // Items whose updates lie here: elements of all that are under way at once, and where one's lies
  // among them.
  std::size_t updates() const { return updates_.size(); }
  std::uint64_t room() const { return room_; }
  std::uint64_t update(std::size_t item) const { return updates_[item]; }

 private:
  std::vector<std::uint64_t> momentum_, masters_, updates_;  // by item
  std::map<std::size_t, std::vector<Leg>> streamed_;         // those instead of the first two
  std::uint64_t length_ = 0;
  std::uint64_t room_ = 0;
};

}  // namespace ebb::libmuon
