// Lookers: calls of any thread that look at a step, beside one that puts the step away.
#pragma once

#include <cstddef>
#include <utility>

#include "bindings/c/handles.h"
#include "ebb/libswap/sys/mutex.h"

namespace ebb::c {

class Lookers {
 public:
  // One that looks, while it lives.
  class Inside {
   public:
    explicit Inside(Lookers& of) : of_(&of) {}
    Inside(Inside&& other) noexcept : of_(std::exchange(other.of_, nullptr)) {}
    Inside& operator=(Inside&&) = delete;
    ~Inside() {
      if (of_ != nullptr) of_->leave();
    }

   private:
    Lookers* of_;
  };
  // Waits for those that are inside, whom the step's end lets go; none comes in while it lives.
  class Outside {
   public:
    explicit Outside(Lookers& of) : of_(of) { of_.keep_out(); }
    ~Outside() { of_.let_in(); }
    Outside(const Outside&) = delete;
    Outside& operator=(const Outside&) = delete;

   private:
    Lookers& of_;
  };
  Result<Inside> enter();  // Code::state while they are kept out

 private:
  void keep_out();
  void let_in();
  void leave();

  libswap::Mutex mutex_;
  libswap::Condition changed_;
  std::size_t inside_ EBB_GUARDED_BY(mutex_) = 0;
  bool kept_out_ EBB_GUARDED_BY(mutex_) = false;
};

}  // namespace ebb::c
