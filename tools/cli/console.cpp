#include "tools/cli/console.h"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>

#include "ebb/formats/core/json_text.h"
#include "ebb/libswap/sys/process.h"
#include "tools/cli/json.h"

namespace ebb::tools {
namespace {

// A signal handler has no other way to reach the program.
std::atomic<bool> stop{false};
std::atomic<int> stop_signal{SIGINT};
static_assert(std::atomic<bool>::is_always_lock_free);

std::atomic<bool> preemption{false};

extern "C" void on_preemption(int number) {
  if (!stop.exchange(true)) stop_signal = number;
  preemption = true;
}

extern "C" void on_stop_signal(int number) {
  stop_signal = number;
  if (stop.exchange(true)) std::_Exit(128 + number);
}

std::string_view environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string_view() : std::string_view(value);
}

// Of a line that is too long the middle is left out: its end says why.
std::string one_line(std::string_view text) {
  constexpr std::size_t kHalf = 2000;
  if (text.size() <= 2 * kHalf) return printable(text, 4 * kHalf);
  return printable(text.substr(0, kHalf), 4 * kHalf) + "..." +
         printable(text.substr(text.size() - kHalf), 4 * kHalf);
}

std::string error_document(const Error& error, Exit exit) {
  JsonWriter json;
  json.open_object().put("schema", "ebb.error/1");
  json.put("exit", static_cast<int>(exit)).key("error").open_object();
  write_error(json, error);
  json.close_object().close_object();
  return json.take();
}

}  // namespace

Exit exit_for(Code code) {
  switch (code) {
    case Code::usage:
    case Code::io:
    case Code::busy:
    case Code::moved:
    case Code::state:
    case Code::layout:
    case Code::peer:
      return Exit::usage;
    case Code::corrupt:
    case Code::incomplete:
    case Code::limit:
      return Exit::damaged;
    case Code::unsupported:
      return Exit::unsupported;
    case Code::no_space:
    case Code::no_memory:
      return Exit::environment;
    case Code::cancelled:
      return stop_signal == SIGTERM ? Exit::terminated : Exit::interrupted;
  }
  return Exit::usage;
}

Console::Console(std::string_view program)
    : program_(program),
      errors_are_terminal_(libswap::is_terminal(libswap::StandardStream::error)) {
  std::signal(SIGPIPE, SIG_IGN);
  const bool plain = !environment("NO_COLOR").empty() || environment("TERM") == "dumb";
  if (libswap::is_terminal(libswap::StandardStream::output) && !plain) colour_ = Colour::on;
}

std::string Console::good(std::string_view text) const {
  return colour_ == Colour::on ? compose("\x1b[32m{}\x1b[0m", text) : std::string(text);
}

std::string Console::bad(std::string_view text) const {
  return colour_ == Colour::on ? compose("\x1b[1;31m{}\x1b[0m", text) : std::string(text);
}

void Console::print(std::string_view text) {
  printed_ = true;
  clear_line();
  if (output_error_ != 0 || quiet_) return;
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size()) output_error_ = errno;
}

void Console::print_now(std::string_view text) {
  print(text);
  if (output_error_ == 0 && std::fflush(stdout) != 0) output_error_ = errno;
}

Exit Console::fail(const Error& error) {
  clear_line();
  if (json_ && !printed_) print(error_document(error, exit_for(error.code)));
  std::fflush(stdout);
  std::fprintf(stderr, "%s: error: %s\n", program_.c_str(), one_line(error.message).c_str());
  if (!error.hint.empty()) std::fprintf(stderr, "hint: %s\n", one_line(error.hint).c_str());
  return exit_for(error.code);
}

void Console::warn(std::string_view message) {
  clear_line();
  std::fflush(stdout);
  std::fprintf(stderr, "%s: %s\n", program_.c_str(), one_line(message).c_str());
}

void Console::draw_line(std::string_view text) {
  std::fprintf(stderr, "\r%s\x1b[K", std::string(text).c_str());
  std::fflush(stderr);
  line_drawn_ = true;
}

void Console::clear_line() {
  if (line_drawn_) draw_line("");
  line_drawn_ = false;
}

Exit Console::finish(Exit exit) {
  if (output_error_ == 0 && std::fflush(stdout) != 0) output_error_ = errno;
  if (output_error_ == 0 || output_error_ == EPIPE) return exit;
  warn(compose("cannot write the output (errno {})", output_error_));
  return exit == Exit::success ? Exit::environment : exit;
}

const std::atomic<bool>& stop_requested() { return stop; }

void catch_stop_signals() {
  std::signal(SIGINT, on_stop_signal);
  std::signal(SIGTERM, on_stop_signal);
}

void catch_preemption() {
  std::signal(SIGTERM, on_preemption);
  std::signal(SIGUSR1, on_preemption);
}

bool preempted() { return preemption; }

}  // namespace ebb::tools
