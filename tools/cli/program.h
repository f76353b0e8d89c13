// A command line program as one table: its flags, examples and exit codes. The table feeds
// Boost.Program_options and writes the help; nothing about a flag is said twice.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

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

// What --help says more of --model, in every program that reads state dicts.
constexpr std::string_view kModelKey =
    "In dcp and torch both are found by what lies where, whatever they are called; what is "
    "not clear is said. KEY is what stands before the names, as in --model app.net; '.' is "
    "the top. Where one is named, no other is looked for.";

struct Positional {
  std::string_view metavar;
  std::string_view line;
};

struct Example {
  std::string_view command;
  std::string_view what;
};

struct Program {
  std::string_view name;
  std::string_view summary;
  std::span<const Positional> positionals;  // all required
  std::span<const Flag> flags;              // besides --help and --version, which every program has
  std::span<const Example> examples;
  std::string_view closing;  // the last paragraph of --help
};

enum class HelpLength : std::uint8_t { brief, full };  // -h, --help
// "ckpt-convert SRC DST": the program and what it always takes, `flags` between them.
std::string shape_of(const Program& program, std::string_view flags);
std::string help_text(const Program& program, HelpLength length);
std::string version_text(const Program& program);

// Some formats are read with the help of a program that lies beside this one, or was not built.
bool is_read_here(const formats::Format& format);

}  // namespace ebb::tools
