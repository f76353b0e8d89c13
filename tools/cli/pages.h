// What a program's table says, for other readers than people at a terminal: man and shells.
#pragma once

#include <string>
#include <string_view>

#include "tools/cli/program.h"

namespace ebb::tools {

// Of section 1, in the macros of man(7).
std::string manual_page(const Program& program);
// Flags, their words where they take one of some, and paths. REQUIRES: `shell` is bash or zsh.
std::string completion_script(const Program& program, std::string_view shell);

}  // namespace ebb::tools
