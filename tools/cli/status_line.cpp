#include "tools/cli/status_line.h"

#include <cstdio>
#include <string>

#include "tools/cli/json.h"

namespace ebb::tools {

StatusLine::StatusLine(Console& console)
    : console_(console),
      reader_(console.is_quiet()              ? Reader::nobody
              : console.errors_are_terminal() ? Reader::person
              : console.speaks_json()         ? Reader::program
                                              : Reader::nobody),
      last_(Clock::now()) {}

bool StatusLine::due() {
  const Clock::time_point now = Clock::now();
  if (reader_ == Reader::nobody || now - last_ < std::chrono::milliseconds(100)) return false;
  last_ = now;
  return true;
}

void StatusLine::say(std::string_view what) {
  if (reader_ == Reader::person) console_.draw_line(what);
}

void StatusLine::tell(std::string_view doing, std::uint64_t bytes, std::uint64_t of) {
  if (reader_ != Reader::program) return;
  JsonWriter json;
  json.open_object().put("schema", "ebb.progress/1").put("doing", doing);
  json.put("bytes", bytes).put("of", of).close_object();
  std::fputs(json.take().c_str(), stderr);
}

}  // namespace ebb::tools
