// ForkLock: a lock that a fork() finds free, in the child too: for what a child is asked about, or
// has to let go of, whatever its parent's other threads were at.
#pragma once

namespace ebb::libswap {

// One for the process. Hold it shortly, and call nothing in it that takes it, too.
class ForkLock {
 public:
  ForkLock();
  ~ForkLock();
  ForkLock(const ForkLock&) = delete;
  ForkLock& operator=(const ForkLock&) = delete;
};

}  // namespace ebb::libswap
