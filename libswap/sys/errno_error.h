// errno values as Errors: one place decides which Code a refusal of the kernel is.
#pragma once

#include <string>

#include "ebb/formats/core/error.h"

namespace ebb::libswap {

std::string errno_text(int number);  // "No space left on device (ENOSPC)"
Code code_of_errno(int number);
Error errno_error(int number, const std::string& what);  // "<what>: <errno_text>"

}  // namespace ebb::libswap
