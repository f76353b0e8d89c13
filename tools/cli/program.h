// A command line program as one table: its flags, examples and exit codes. The table feeds
// Boost.Program_options and writes the help, the manual page and completions (pages.h); nothing
// about a flag is said twice.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ebb::formats {
class Format;
}

namespace ebb::tools {

enum class FlagType : std::uint8_t {
  on,      // present or not; takes no value
  text,    // any non-empty text
  choice,  // one of Flag::choices
  count,   // a whole number >= 0
  size,    // bytes: 4096, 64KiB, 5GB, 1.5GiB
};
enum class Repeat : std::uint8_t {
  once,
  many,  // each value behind a flag of its own
  list,  // as many values behind it as there are
};

struct Flag {
  std::string_view name;  // without the dashes
  char letter = '\0';     // '\0': no short form
  FlagType type = FlagType::on;
  std::string_view metavar;        // empty for FlagType::on
  std::string_view default_value;  // empty: none
  std::string_view group;          // heading in the help
  std::span<const std::string_view> choices;
  std::string_view line;  // what it does, in one line
  std::string_view more;  // for --help only; may be empty
  Repeat repeat = Repeat::once;

  // The same flag, but for this; the rest is as flag() makes it.
  constexpr Flag as(FlagType other) && {
    type = other;
    return *this;
  }
  constexpr Flag many() && {
    repeat = Repeat::many;
    return *this;
  }
  constexpr Flag or_else(std::string_view text) && {
    default_value = text;
    return *this;
  }
  constexpr Flag one_of(std::span<const std::string_view> words) && {
    choices = words;
    return std::move(*this).as(FlagType::choice);
  }
};

// A flag as the help spells it: "-w, --world-size N"; "--force" takes no value. A value is any
// text, given once.
constexpr Flag flag(std::string_view group, std::string_view spelling, std::string_view line,
                    std::string_view more = {}) {
  Flag flag{.group = group, .line = line, .more = more};
  if (spelling[1] != '-') {
    flag.letter = spelling[1];
    spelling.remove_prefix(spelling.find("--"));
  }
  const std::size_t end = spelling.find(' ');
  flag.name = spelling.substr(0, end).substr(2);
  if (end == std::string_view::npos) return flag;
  flag.metavar = spelling.substr(end + 1);
  return std::move(flag).as(FlagType::text);
}

// Of programs whose answer may be the exit code alone.
constexpr Flag quiet_flag(std::string_view group) {
  return flag(group, "-q, --quiet", "say nothing but errors: the exit code is the answer");
}

// What --help says more of --model, in every program that reads state dicts.
constexpr std::string_view kModelKey =
    "In dcp and torch both are found by what lies where, whatever they are called; what is "
    "not clear is said. KEY is what stands before the names, as in --model app.net; '.' is "
    "the top. Where one is named, no other is looked for.";

struct Positional {
  std::string_view metavar;
  std::string_view line;
  std::string_view default_value = {};  // empty: required; else those behind it have one, too
};

struct Example {
  std::string_view command;
  std::string_view what;
};

struct ExitLine {
  std::string_view code;
  std::string_view line;
};

// What some programs share.
inline constexpr ExitLine kSuccess = {"0", "success"};
inline constexpr ExitLine kUsage = {"2", "wrong usage, or an ordinary input/output error"};
inline constexpr ExitLine kUnsafe = {"3",
                                     "the checkpoint is damaged, incomplete or not safe to load"};
inline constexpr ExitLine kUnsupported = {
    "4",
    "not supported: no format that is known, or a part that is not "
    "read"};
inline constexpr ExitLine kEnvironment = {"5",
                                          "the environment refuses: no space, too little memory"};
inline constexpr ExitLine kStopped = {"130", "stopped by Ctrl-C (143: by SIGTERM)"};

// Of a program that reads checkpoints.
inline constexpr std::array kCheckpointExits = {kSuccess,     kUsage,       kUnsafe,
                                                kUnsupported, kEnvironment, kStopped};
// Of one that judges them as well.
inline constexpr std::array kJudgeExits = {
    kSuccess,     ExitLine{"1", "checked, and found different, damaged or not resumable"},
    kUsage,       kUnsafe,
    kUnsupported, kEnvironment,
    kStopped};
// Of one that reads none.
inline constexpr std::array kPlainExits = {kSuccess, kUsage, kEnvironment, kStopped};

// Whether a program reads or writes checkpoints: --help and --version list the formats then.
enum class Formats : std::uint8_t { listed, none };

struct Program {
  std::string_view name;
  std::string_view summary;
  std::span<const Positional> positionals;
  std::span<const Flag> flags;  // besides --help and --version, which every program has
  std::span<const Example> examples;
  std::string_view closing;  // the last paragraph of --help
  Formats formats = Formats::listed;
  std::span<const ExitLine> exits = kCheckpointExits;
};

enum class HelpLength : std::uint8_t { brief, full };  // -h, --help
// Those of the table, and what every program has.
std::vector<Flag> all_flags(const Program& program);
// "ckpt-convert SRC DST", "ckpt-inspect [PATH]": the program and its arguments, `flags` between.
std::string shape_of(const Program& program, std::string_view flags);
std::string help_text(const Program& program, HelpLength length);
std::string version_text(const Program& program);

// Some formats are read with the help of a program that lies beside this one, or was not built.
bool is_read_here(const formats::Format& format);

}  // namespace ebb::tools
