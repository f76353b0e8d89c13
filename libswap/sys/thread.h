// start_thread: a std::thread that takes no signals (they are the program's, not ours) and whose
// failure to start is a value.
#pragma once

#include <csignal>
#include <functional>
#include <string>
#include <system_error>
#include <thread>

#include "ebb/formats/core/result.h"

namespace ebb::libswap {

inline Result<std::thread> start_thread(std::function<void()> body) {
  sigset_t all;
  sigset_t before;
  ::sigfillset(&all);
  ::pthread_sigmask(SIG_SETMASK, &all, &before);
  std::thread thread;
  std::string why;
  try {
    thread = std::thread(std::move(body));
  } catch (const std::system_error& error) {
    why = error.what();
  }
  ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
  if (!why.empty()) return Error{Code::no_memory, "cannot start a thread: " + why, "ulimit -u"};
  return thread;
}

}  // namespace ebb::libswap
