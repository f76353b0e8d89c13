// What a training leaves, of which a resume is part: for comparing it with the same in another way.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tests/libmuon/support/training.h"

namespace ebb::test {

struct Trained {
  Outcome outcome;
  std::map<std::string, std::vector<float>> stored;  // by name and state
  bool operator==(const Trained&) const = default;
};

// A part of a training, and where its state came from.
struct Leg {
  std::uint32_t ranks = 1;
  Policy policy = Policy::zero3;
  libmuon::Placement placement = libmuon::Placement::owner;
  std::uint64_t chunk_bytes = 0;
  std::string origin;
};

// A training in chunks of such bytes, 1, 5000 or more than there are, and so many ranks: tiles,
// budget, slots, threads, room for early gradients and snapshots differ with them.
struct Variant {
  std::uint32_t ranks = 1;
  Policy gradients = Policy::zero3, weights = Policy::zero3;
  std::uint64_t chunk_bytes = 1;
};
Training training_of(const Variant& variant);
std::string text_of(const Variant& variant);

// Half of the steps, and the rest after a resume.
Trained train_in_two(const Training& setup, std::uint64_t steps);

}  // namespace ebb::test
