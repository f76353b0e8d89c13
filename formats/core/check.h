// CHECK: our own invariants, in every build. Never for what a caller, a file or a disk may do.
#pragma once

namespace formats {

[[noreturn]] void check_failed(const char* condition, const char* file, int line);

}  // namespace formats

#define CHECK(condition) \
  ((condition) ? static_cast<void>(0) : ::formats::check_failed(#condition, __FILE__, __LINE__))
