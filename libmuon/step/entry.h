// Entry: who is inside of an engine. One thread drives it; a second call beside the first is
// refused before it touches anything. Only calls that hand gradients in may be several at once. In
// a child made by fork() every call is refused.
#pragma once

#include <atomic>
#include <string_view>
#include <utility>

#include "ebb/formats/core/result.h"
#include "ebb/libswap/sys/home_process.h"

namespace ebb::libmuon {

class Entry {
 public:
  // For as long as it lives.
  class Inside {
   public:
    Inside(Inside&& other) noexcept
        : calls_(std::exchange(other.calls_, nullptr)), mine_(other.mine_) {}
    Inside& operator=(Inside&&) = delete;
    ~Inside() {
      if (calls_ != nullptr) calls_->fetch_sub(mine_);
    }

   private:
    friend class Entry;
    Inside(std::atomic<int>& calls, int mine) : calls_(&calls), mine_(mine) {}
    std::atomic<int>* calls_;
    int mine_;
  };

  const libswap::HomeProcess& process() const { return process_; }
  // Code::state where another call is inside, of any kind. `call`: its name, for the message.
  Result<Inside> alone(std::string_view call) {
    EBB_TRY(process_.check());
    int none = 0;
    if (!calls_.compare_exchange_strong(none, kAlone)) return refused(call);
    return Inside(calls_, kAlone);
  }
  // Code::state where a call is inside that is alone.
  Result<Inside> handing_in(std::string_view call) {
    EBB_TRY(process_.check());
    int seen = calls_;
    do {
      if (seen == kAlone) return refused(call);
    } while (!calls_.compare_exchange_weak(seen, seen + 1));
    return Inside(calls_, 1);
  }

 private:
  static constexpr int kAlone = -1;
  static Error refused(std::string_view call) {
    return {Code::state, compose("{}: another thread is inside of this engine", call),
            "one thread drives an engine; only gradients are handed in from several"};
  }

  const libswap::HomeProcess process_{"engine"};
  std::atomic<int> calls_ = 0;  // kAlone, or how many hand in
};

}  // namespace ebb::libmuon
