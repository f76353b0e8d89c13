// FileSizeSignalBlocked: while it lives, a file that would grow over its limit (ulimit -f) is EFBIG
// on this thread, not the signal that ends the process.
#pragma once

#include <csignal>
#include <ctime>

namespace ebb::libswap {

class FileSizeSignalBlocked {
 public:
  FileSizeSignalBlocked() {
    ::sigemptyset(&signal_);
    ::sigaddset(&signal_, SIGXFSZ);
    ::pthread_sigmask(SIG_BLOCK, &signal_, &before_);
  }
  ~FileSizeSignalBlocked() {
    // Blocked before: whoever did that deals with what is pending.
    if (::sigismember(&before_, SIGXFSZ) == 1) return;
    const timespec now{};
    while (::sigtimedwait(&signal_, nullptr, &now) == SIGXFSZ) {
    }
    ::pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  FileSizeSignalBlocked(const FileSizeSignalBlocked&) = delete;
  FileSizeSignalBlocked& operator=(const FileSizeSignalBlocked&) = delete;

 private:
  sigset_t signal_{};
  sigset_t before_{};
};

}  // namespace ebb::libswap
