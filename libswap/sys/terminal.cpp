#include "ebb/libswap/sys/terminal.h"

#include <unistd.h>

namespace ebb::libswap {
namespace {

int descriptor_of(StandardStream stream) {
  return stream == StandardStream::output ? STDOUT_FILENO : STDERR_FILENO;
}

}  // namespace

bool is_terminal(StandardStream stream) { return isatty(descriptor_of(stream)) == 1; }

}  // namespace ebb::libswap
