// ByteLane: memory in several places as one run of bytes, passed over once from its beginning.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <span>
#include <vector>

#include "ebb/formats/core/bytes.h"

namespace ebb::libmuon {

class ByteLane {
 public:
  // Borrowed.
  void add(std::span<std::byte> place) {
    left_ += place.size();
    places_.push_back(place);
  }
  std::size_t left() const { return left_; }

  // The next bytes, `most` at most.
  ByteVector take(std::size_t most) {
    ByteVector out(std::min(most, left_));
    pass(out.size(), [&](std::span<std::byte> place, std::size_t at) {
      std::memcpy(out.data() + at, place.data(), place.size());
    });
    return out;
  }
  // REQUIRES: not more than left().
  void put(ByteView bytes) {
    pass(bytes.size(), [&](std::span<std::byte> place, std::size_t at) {
      std::memcpy(place.data(), bytes.data() + at, place.size());
    });
  }
  // The same in place: the next bytes that lie together, `most` at most, and how many of them were
  // used. REQUIRES of used(): not more than next() gave.
  std::span<std::byte> next(std::size_t most) {
    skip_full_places();
    if (left_ == 0) return {};
    const auto rest = places_[place_].subspan(inside_);
    return rest.first(std::min(rest.size(), most));
  }
  void used(std::size_t count) {
    EBB_CHECK(count <= left_);
    left_ -= count;
    inside_ += count;
  }

 private:
  template <typename Visit>
  void pass(std::size_t count, Visit visit) {
    EBB_CHECK(count <= left_);
    for (std::size_t at = 0; at < count;) {
      const auto place = next(count - at);
      visit(place, at);
      used(place.size());
      at += place.size();
    }
  }
  void skip_full_places() {
    for (; left_ > 0 && inside_ == places_[place_].size(); inside_ = 0) ++place_;
  }

  std::vector<std::span<std::byte>> places_;
  std::size_t place_ = 0, inside_ = 0, left_ = 0;
};

}  // namespace ebb::libmuon
