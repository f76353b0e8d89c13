#include "tools/cli/run.h"

#include <algorithm>
#include <cstdio>
#include <new>
#include <string>
#include <utility>
#include <vector>

#include "ebb/libswap/sys/confine.h"
#include "tools/cli/pages.h"

namespace ebb::tools {
namespace {

Exit run_work(const Program& program, Console& console, const std::vector<std::string>& words,
              const Work& work) {
  const auto invocation = parse_command_line(program, words);
  if (!invocation) return console.fail(invocation.error());
  switch (invocation->wanted) {
    case Invocation::Wanted::brief_help:
      console.print(help_text(program, HelpLength::brief));
      return Exit::success;
    case Invocation::Wanted::full_help:
      console.print(help_text(program, HelpLength::full));
      return Exit::success;
    case Invocation::Wanted::version:
      console.print(version_text(program));
      return Exit::success;
    case Invocation::Wanted::manual:
      console.print(manual_page(program));
      return Exit::success;
    case Invocation::Wanted::completion:
      console.print(completion_script(program, invocation->shell));
      return Exit::success;
    case Invocation::Wanted::work:
      break;
  }
  if (invocation->arguments.has("quiet")) console.be_quiet();
  const auto exit = work(console, invocation->arguments);
  return exit ? *exit : console.fail(exit.error());
}

// No memory for an object, in whatever thread: one sentence, and the end as after a kill. What lies
// on the disk is whole, or can be resumed.
void end_without_memory() {
  std::fputs(
      "error: not enough memory\nhint: ulimit -v shows the limit; a smaller --budget or "
      "--memory takes less\n",
      stderr);
  libswap::leave_at_once(static_cast<int>(Exit::environment));
}

}  // namespace

Work looking_again(Work work) {
  return [work = std::move(work)](Console& console, const Arguments& arguments) -> Result<Exit> {
    constexpr int kLooks = 5;
    for (int look = 1;; ++look) {
      auto exit = work(console, arguments);
      if (exit || exit.error().code != Code::moved) return exit;
      if (look < kLooks) continue;
      Error error = std::move(exit).error();
      error.message =
          compose("the checkpoint is replaced faster than it can be read, {} times in a row: {}",
                  kLooks, error.message);
      return error;
    }
  };
}

int run_program(const Program& program, int argc, char** argv, const Work& work) {
  std::set_new_handler(end_without_memory);
  Console console(program.name);
  const std::vector<std::string> words(argv + (argc > 0 ? 1 : 0), argv + argc);
  // Before the words are looked at: what is wrong with them is an answer, too.
  if (std::find(words.begin(), words.end(), "--json") != words.end()) console.speak_json();
  return static_cast<int>(console.finish(run_work(program, console, words, work)));
}

}  // namespace ebb::tools
