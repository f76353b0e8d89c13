// What becomes of an allocation that fails where nobody may throw: in threads of ours, destructors
// and continuations. or_no_memory(): somebody waits for an answer, and gets that one.
// when_memory(): it has to be done, and needs a little: it waits until there is some.
#pragma once

#include <chrono>
#include <new>
#include <thread>
#include <utility>

#include "ebb/formats/core/result.h"
#include "ebb/libswap/sys/mutex.h"

namespace ebb::libswap {

// What `body` answers, a Result; Code::no_memory where it finds none.
template <typename Body>
EBB_CALLS_WHAT_IT_IS_GIVEN auto or_no_memory(const Body& body) -> decltype(body()) {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return Error{Code::no_memory, "out of memory"};  // short: needs no memory itself
  }
}

// `body` changes nothing where it finds no memory.
template <typename Body>
EBB_CALLS_WHAT_IT_IS_GIVEN auto when_memory(const Body& body) noexcept -> decltype(body()) {
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
