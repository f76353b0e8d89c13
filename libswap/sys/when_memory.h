// when_memory: for what has to be done, as in a destructor, and needs a little memory for it: it
// waits until there is some.
#pragma once

#include <chrono>
#include <new>
#include <thread>
#include <utility>

namespace ebb::libswap {

// `body` changes nothing where it finds no memory.
template <typename Body>
void when_memory(const Body& body) noexcept {
  for (;;) {
    try {
      return body();
    } catch (const std::bad_alloc&) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
}

// At the end of a vector or deque.
template <typename Sequence>
void add_when_memory(Sequence& all, typename Sequence::value_type value) noexcept {
  when_memory([&] { all.push_back(std::move(value)); });
}

}  // namespace ebb::libswap
