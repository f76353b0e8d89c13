#include "bindings/c/handles.h"

namespace ebb::c {

// No address: where one is read by mistake, the processor says so.
std::uintptr_t next_handle() {
  static std::uintptr_t last = 0;
  last += 2;
  return last | 1;
}

}  // namespace ebb::c
