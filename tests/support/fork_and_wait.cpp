#include "tests/support/fork_and_wait.h"

namespace ebb::test_support {

int tries_of_a_child() {
#ifdef __SANITIZE_ADDRESS__
  return 4;
#else
  return 1;
#endif
}

}  // namespace ebb::test_support
