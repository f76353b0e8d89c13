// Compiled as C++17: ebb.h, and that its functions throw nothing.
#include "bindings/c/ebb.h"

static_assert(__cplusplus == 201703L);
static_assert(noexcept(ebb_engine_step(nullptr, nullptr, nullptr)));
static_assert(noexcept(ebb_last_error()));
