#include "ebb/libswap/sys/errno_error.h"

#include <cerrno>
#include <cstring>

namespace ebb::libswap {

std::string errno_text(int number) {
  const char* description = ::strerrordesc_np(number);
  const char* name = ::strerrorname_np(number);
  if (description == nullptr || name == nullptr) return compose("error {}", number);
  return compose("{} ({})", description, name);
}

Code code_of_errno(int number) {
  switch (number) {
    case ENOSPC:
    case EDQUOT:
    case EFBIG:
      return Code::no_space;
    case ENOMEM:
      return Code::no_memory;
    case EEXIST:
      return Code::usage;
    case EBUSY:
    case EWOULDBLOCK:
      return Code::busy;
    case ECANCELED:
      return Code::cancelled;
    default:
      return Code::io;
  }
}

Error errno_error(int number, const std::string& what) {
  const Code code = code_of_errno(number);
  std::string hint = code == Code::no_space ? "df -h; df -i" : "";
  if (number == EFBIG) hint = "ulimit -f unlimited";
  return {code, what + ": " + errno_text(number), std::move(hint)};
}

}  // namespace ebb::libswap
