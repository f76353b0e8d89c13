// What the library's errors advise, in the words of who typed a command: its settings are flags
// here, and its checkpoints are known by name.
#pragma once

#include <filesystem>
#include <string_view>

#include "ebb/formats/core/result.h"

namespace ebb::gpt {

// Where a run begins from, and the flag that says so: --swap or --resume-from.
struct Source {
  std::string_view flag;
  std::filesystem::path path;
};
Error in_flags(Error error, const Source& source);

}  // namespace ebb::gpt
