#include "ebb/libswap/sys/errno_error.h"

#include <cerrno>
#include <cstring>

namespace ebb::libswap {

std::string errno_text(int number) {
  const char* description = ::strerrordesc_np(number);
  const char* name = ::strerrorname_np(number);
  if (description == nullptr || name == nullptr) return "error " + std::to_string(number);
  return std::string(description) + " (" + name + ")";
}

formats::Code code_of_errno(int number) {
  switch (number) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return formats::Code::no_space;
    case ENOMEM:
      return formats::Code::no_memory;
    case EEXIST:
      return formats::Code::usage;
    case EBUSY:
    case EWOULDBLOCK:
      return formats::Code::busy;
    case ECANCELED:
      return formats::Code::cancelled;
    default:
      return formats::Code::io;
  }
}

formats::Error errno_error(int number, const std::string& what) {
  const formats::Code code = code_of_errno(number);
  std::string hint = code == formats::Code::no_space ? "df -h; df -i" : "";
  if (number == EFBIG) hint = "ulimit -f unlimited";
  return {code, what + ": " + errno_text(number), std::move(hint)};
}

}  // namespace ebb::libswap
