#include "ebb/libswap/sys/fork_lock.h"

#include <pthread.h>

namespace ebb::libswap {
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

}  // namespace ebb::libswap
