#include "ebb/libswap/sys/list_directory.h"

#include <dirent.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <string_view>

#include "ebb/libswap/sys/errno_error.h"

namespace ebb::libswap {
namespace {

struct Closed {
  void operator()(DIR* directory) const { ::closedir(directory); }
};

}  // namespace

Result<std::vector<std::string>> list_directory(const std::filesystem::path& directory,
                                                std::size_t most) {
  const std::unique_ptr<DIR, Closed> open(::opendir(directory.c_str()));
  if (open == nullptr) return errno_error(errno, "cannot list " + directory.string());
  std::vector<std::string> names;
  errno = 0;
  for (const dirent* entry = nullptr; (entry = ::readdir(open.get())) != nullptr; errno = 0) {
    const std::string_view name = entry->d_name;
    if (name == "." || name == "..") continue;
    if (names.size() == most)
      return Error{Code::limit,
                   compose("{} has more than {} entries, the limit", directory.string(), most)};
    names.emplace_back(name);
  }
  if (errno != 0) return errno_error(errno, "cannot list " + directory.string());
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace ebb::libswap
