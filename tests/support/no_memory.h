// find_no_memory(): what an allocation throws that fails, without asking anybody for memory.
#pragma once

#include <cstddef>
#include <memory>

namespace ebb::test {

inline void find_no_memory() {
  constexpr auto kTooMany = ~std::size_t{0};
  std::allocator<int> of_ints;
  of_ints.deallocate(of_ints.allocate(kTooMany), kTooMany);
}

}  // namespace ebb::test
