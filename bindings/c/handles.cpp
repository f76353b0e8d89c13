#include "bindings/c/handles.h"

namespace ebb::c {
namespace {

pthread_mutex_t& mutex() {
  static pthread_mutex_t one = PTHREAD_MUTEX_INITIALIZER;
  static const int registered = ::pthread_atfork([] { ::pthread_mutex_lock(&mutex()); },
                                                 [] { ::pthread_mutex_unlock(&mutex()); },
                                                 [] { ::pthread_mutex_unlock(&mutex()); });
  static_cast<void>(registered);
  return one;
}

}  // namespace

ForkLock::ForkLock() { ::pthread_mutex_lock(&mutex()); }
ForkLock::~ForkLock() { ::pthread_mutex_unlock(&mutex()); }

// No address: where one is read by mistake, the processor says so.
std::uintptr_t next_handle() {
  static std::uintptr_t last = 0;
  last += 2;
  return last | 1;
}

}  // namespace ebb::c
