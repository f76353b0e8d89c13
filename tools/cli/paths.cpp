#include "tools/cli/paths.h"

#include <system_error>

#include "ebb/libswap/sys/process.h"

namespace ebb::tools {

namespace fs = std::filesystem;

fs::path trimmed(const std::string& path) {
  const fs::path normal = fs::path(path).lexically_normal();
  return normal.has_filename() ? normal : normal.parent_path();
}

fs::path folder_of(const fs::path& path) {
  return path.has_parent_path() ? path.parent_path() : fs::path(".");
}

Result<> check_folder_of(const std::string& path) {
  const fs::path folder = folder_of(trimmed(path));
  std::error_code code;
  if (fs::is_directory(folder, code)) return libswap::check_may_write(folder);
  return libswap::missing_folder(path, folder);
}

}  // namespace ebb::tools
