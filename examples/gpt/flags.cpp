#include "examples/gpt/flags.h"

#include "tools/cli/text.h"

namespace ebb::gpt {
namespace {

// True where `text` had it.
bool replace(std::string& text, std::string_view what, std::string_view by) {
  const std::size_t at = text.find(what);
  if (at == std::string::npos) return false;
  text.replace(at, what.size(), by);
  return true;
}

}  // namespace

Error in_flags(Error error, const Source& source) {
  std::string& hint = error.hint;
  replace(hint, "EngineConfig::dropped = DroppedState::allowed", "--allow-dropped");
  const std::string made = tools::shell_quoted(source.path.string() + "-new");
  if (replace(hint, " CHECKPOINT NEW ",
              compose(" {} {} ", tools::shell_quoted(source.path.string()), made)))
    replace(hint, "begin from NEW", compose("--{} {}", source.flag, made));
  return error;
}

}  // namespace ebb::gpt
