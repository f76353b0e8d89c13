// What holds within a limit that somebody else may be silent for: a machine that is busy may keep
// whoever is to speak as long. So a test says "with some limit, each five times the one before".
#pragma once

#include <chrono>

namespace ebb::test_support {

// holds(limit) answers whether it did.
template <typename Holds>
bool holds_within_some_limit(std::chrono::milliseconds first, const Holds& holds) {
  return holds(first) || holds(5 * first) || holds(25 * first);
}

}  // namespace ebb::test_support
