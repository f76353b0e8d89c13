// What errors call things: they come from C++, and name its functions and members.
#pragma once

#include <string>

namespace ebb::c {

// The text with what ebb.h calls them.
std::string in_c(std::string text);

}  // namespace ebb::c
