// What a piece of work costs, measured in a process of its own.
#pragma once

#include <cstdint>
#include <functional>

namespace ebb::test_support {

struct Cost {
  bool returned = false;         // false: it crashed, or took more than a minute
  double seconds = 0;            // of processor time
  std::uint64_t peak_bytes = 0;  // of memory, with what the test itself has
};

// Under sanitizers, which cost memory and time themselves, both figures stay 0.
Cost cost_of(const std::function<void()>& work);

}  // namespace ebb::test_support
