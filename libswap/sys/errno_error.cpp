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
  if (number == ENOSPC || number == EDQUOT || number == EFBIG) return Code::no_space;
  if (number == ENOMEM) return Code::no_memory;
  if (number == EEXIST) return Code::usage;
  if (number == EBUSY || number == EWOULDBLOCK) return Code::busy;
  return number == ECANCELED ? Code::cancelled : Code::io;
}

Error errno_error(int number, const std::string& what) {
  const Code code = code_of_errno(number);
  std::string hint = code == Code::no_space ? "df -h; df -i" : "";
  if (number == EFBIG) hint = "ulimit -f unlimited";
  return {code, what + ": " + errno_text(number), std::move(hint)};
}

}  // namespace ebb::libswap
