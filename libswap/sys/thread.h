// start_thread: a std::thread that takes no signals (they are the program's, not ours) and whose
// failure to start is a value. What it runs lets no exception out.
#pragma once

#include <csignal>
#include <functional>
#include <new>
#include <string>
#include <system_error>
#include <thread>

#include "ebb/formats/core/result.h"

namespace ebb::libswap {

// This thread's signals wait while it is there: a thread that it starts takes none.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    ::sigfillset(&all);
    ::pthread_sigmask(SIG_SETMASK, &all, &before_);
  }
  ~SignalsBlocked() { ::pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

inline Result<std::thread> start_thread(std::function<void()> body) {
  const SignalsBlocked blocked;
  try {
    return std::thread(std::move(body));
  } catch (const std::system_error& error) {
    return Error{Code::no_memory, std::string("cannot start a thread: ") + error.what(),
                 "ulimit -u"};
  } catch (const std::bad_alloc&) {
    return Error{Code::no_memory, "out of memory"};
  }
}

}  // namespace ebb::libswap
