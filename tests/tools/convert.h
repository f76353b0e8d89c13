// ckpt-convert as a user runs it.
#pragma once

#include <string>
#include <vector>

#include "tests/support/program.h"

namespace ebb {

inline test_support::Outcome convert(const std::vector<std::string>& arguments) {
  return test_support::run_program("ckpt-convert", arguments);
}

}  // namespace ebb
