// What C makes of the structs of ebb.h. Read by C and by C++, which call a variable alike.
#pragma once

#include <stddef.h>

#include "bindings/c/ebb.h"

typedef struct struct_size {
  const char* name;
  size_t size;
} struct_size;

extern const struct_size struct_sizes[];  // the last has no name
