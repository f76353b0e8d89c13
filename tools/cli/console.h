// How a program speaks: data to stdout, messages to stderr, one exit code per kind of failure.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

#include "ebb/formats/core/error.h"

namespace ebb::tools {

enum class Exit : int {
  success = 0,
  different = 1,      // checked, and found different or damaged
  usage = 2,          // wrong usage, or an ordinary input/output error
  damaged = 3,        // the checkpoint is damaged or incomplete
  unsupported = 4,    // the checkpoint is valid but not supported
  environment = 5,    // no space, too little memory
  interrupted = 130,  // by SIGINT
  terminated = 143,   // by SIGTERM
};

// The one place where error codes become exit codes.
Exit exit_for(Code code);

enum class Colour : std::uint8_t { off, on };

class Console {
 public:
  // Looks at the terminal, NO_COLOR and TERM; makes a closed pipe an error value, not a signal.
  explicit Console(std::string_view program);

  // A reader that went away (`| head`) is no failure: the rest is dropped.
  void print(std::string_view text);
  // The same, there before anything else happens: what comes behind it may end in a kill.
  void print_now(std::string_view text);
  // From here on stdout is for programs: fail() writes its error there, too, as a JSON document,
  // unless this run has written one already.
  void speak_json() { json_ = true; }
  bool speaks_json() const { return json_; }
  // From here on nothing is said but errors.
  void be_quiet() { quiet_ = true; }
  bool is_quiet() const { return quiet_; }
  // "program: error: message" and "hint: ...", control characters escaped.
  Exit fail(const Error& error);
  void warn(std::string_view message);
  // One line on stderr, a terminal, in the place of the one before; gone before anything else is
  // said.
  void draw_line(std::string_view text);
  void clear_line();

  bool errors_are_terminal() const { return errors_are_terminal_; }
  // Green and red on a terminal that wants colours, as it is elsewhere: for verdicts only.
  std::string good(std::string_view text) const;
  std::string bad(std::string_view text) const;
  // Flushes; success unless what was printed could not be written.
  Exit finish(Exit exit);

 private:
  std::string program_;
  bool errors_are_terminal_ = false;
  bool json_ = false;
  bool quiet_ = false;
  bool printed_ = false;
  bool line_drawn_ = false;
  int output_error_ = 0;  // errno of the first write that failed
  Colour colour_ = Colour::off;
};

// Set by the first SIGINT or SIGTERM; a second one ends the process at once.
const std::atomic<bool>& stop_requested();
void catch_stop_signals();
// SIGTERM and SIGUSR1, too, ask to stop, however often they come: what a scheduler sends before it
// takes the machine from a job that can go on later. After catch_stop_signals().
void catch_preemption();
bool preempted();

}  // namespace ebb::tools
