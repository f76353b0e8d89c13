#include "libswap/sys/terminal.h"

#include <sys/ioctl.h>
#include <unistd.h>

namespace libswap {
namespace {

int descriptor_of(StandardStream stream) {
  return stream == StandardStream::output ? STDOUT_FILENO : STDERR_FILENO;
}

}  // namespace

bool is_terminal(StandardStream stream) { return isatty(descriptor_of(stream)) == 1; }

std::uint32_t terminal_columns(StandardStream stream) {
  winsize size{};
  if (ioctl(descriptor_of(stream), TIOCGWINSZ, &size) != 0) return 0;
  return size.ws_col;
}

}  // namespace libswap
