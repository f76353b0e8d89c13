// Handles: what callers have of an object is a number that no other object ever had, so that a
// closed handle, or none at all, is found out without looking where it points. Objects are those of
// the process that made them: in a child made by fork() they are found, and refused.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string_view>

#include "ebb/formats/core/result.h"
#include "ebb/libswap/sys/fork_lock.h"
#include "ebb/libswap/sys/home_process.h"

namespace ebb::c {

// A number for a new handle. REQUIRES: the caller has the lock.
std::uintptr_t next_handle();

template <typename Object>
class Handles {
 public:
  // `what`: "engine"; a literal.
  explicit Handles(std::string_view what) : what_(what) {}

  template <typename Handle>
  Result<> add(std::shared_ptr<Object> object, Handle** handle) {
    const libswap::ForkLock lock;
    const std::uintptr_t number = next_handle();
    objects_.emplace(number, Entry{std::move(object), libswap::HomeProcess(what_)});
    *handle = reinterpret_cast<Handle*>(number);
    return {};
  }
  // The object, which stays while the caller of this has it.
  Result<std::shared_ptr<Object>> find(const void* handle) {
    const libswap::ForkLock lock;
    const auto found = objects_.find(reinterpret_cast<std::uintptr_t>(handle));
    if (found == objects_.end()) return unknown(handle);
    EBB_TRY(found->second.home.check());
    return found->second.object;
  }
  // No handle leads to it any more. Code::state while another thread is inside a call with it.
  Result<std::shared_ptr<Object>> remove(const void* handle) {
    const libswap::ForkLock lock;
    const auto found = objects_.find(reinterpret_cast<std::uintptr_t>(handle));
    if (found == objects_.end()) return unknown(handle);
    if (found->second.home.here() && found->second.object.use_count() > 1)
      return Error{Code::state, compose("this {} is inside of another thread's call", what_),
                   "close it when that has returned"};
    auto object = std::move(found->second.object);
    objects_.erase(found);
    return object;
  }

 private:
  struct Entry {
    std::shared_ptr<Object> object;
    libswap::HomeProcess home;
  };
  Error unknown(const void* handle) const {
    return {Code::usage, handle == nullptr ? compose("the {} is NULL", what_)
                                           : compose("there is no such {}: it was closed, or "
                                                     "never was one",
                                                     what_)};
  }

  const std::string_view what_;
  std::map<std::uintptr_t, Entry> objects_;
};

}  // namespace ebb::c
