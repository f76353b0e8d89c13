// Paths as people type them.
#pragma once

#include <filesystem>
#include <string>

#include "ebb/formats/core/result.h"

namespace ebb::tools {

// Without slashes at its end, and without "." and "x/.." in it.
std::filesystem::path trimmed(const std::string& path);

// What it lies in: "." for a mere name.
std::filesystem::path folder_of(const std::filesystem::path& path);

// Fails where nothing can be made at `path`, and names why: no such folder, no permission.
Result<> check_folder_of(const std::string& path);

}  // namespace ebb::tools
