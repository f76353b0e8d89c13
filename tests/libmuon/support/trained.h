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

// Half of the steps, and the rest after a resume.
Trained train_in_two(const Training& setup, std::uint64_t steps);

}  // namespace ebb::test
