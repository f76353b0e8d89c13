#include "bindings/c/lookers.h"

namespace ebb::c {

Result<Lookers::Inside> Lookers::enter() {
  const libswap::MutexLock lock(mutex_);
  if (kept_out_)
    return Error{Code::state, "another thread's call goes back to an earlier step",
                 "wait for parameters of the next step"};
  ++inside_;
  return Inside(*this);
}

void Lookers::keep_out() {
  const libswap::MutexLock lock(mutex_);
  kept_out_ = true;
  while (inside_ > 0) changed_.wait(mutex_);
}

void Lookers::let_in() {
  const libswap::MutexLock lock(mutex_);
  kept_out_ = false;
}

void Lookers::leave() {
  const libswap::MutexLock lock(mutex_);
  --inside_;
  changed_.notify_all();
}

}  // namespace ebb::c
