// CHECK: our own invariants, in every build. Never for what a caller, a file or a disk may do.
#pragma once

namespace ebb::formats {

[[noreturn]] void check_failed(const char* condition, const char* file, int line);

}  // namespace ebb::formats

#define EBB_CHECK(condition)          \
  ((condition) ? static_cast<void>(0) \
               : ::ebb::formats::check_failed(#condition, __FILE__, __LINE__))
