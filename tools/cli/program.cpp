#include "tools/cli/program.h"

#include <algorithm>
#include <vector>

#include "ebb/formats/registry.h"
#include "ebb/libswap/sys/process.h"
#include "tools/cli/text.h"

namespace ebb::tools {
namespace {

constexpr std::size_t kWidth = 80;
constexpr std::string_view kVersion = EBB_VERSION;
constexpr std::array<std::string_view, 2> kShells = {"bash", "zsh"};

// Words of `text` in lines of at most kWidth, every line indented.
std::string wrapped(std::string_view text, std::size_t indent) {
  std::string out, line(indent, ' ');
  const auto flush = [&] {
    out += line + "\n";
    line.assign(indent, ' ');
  };
  while (!text.empty()) {
    const std::size_t end = std::min(text.find(' '), text.size());
    const std::string_view word = text.substr(0, end);
    if (line.size() > indent && line.size() + 1 + word.size() > kWidth) flush();
    if (line.size() > indent) line += ' ';
    line += word;
    text.remove_prefix(std::min(end + 1, text.size()));
  }
  flush();
  return out;
}

std::string spelling(const Flag& flag) {
  std::string out = flag.letter == '\0' ? "    " : std::string("-") + flag.letter + ", ";
  out.append("--").append(flag.name);
  if (!flag.metavar.empty()) out.append(" ").append(flag.metavar);
  return out;
}

std::string flag_text(const Flag& flag, std::size_t column, HelpLength length) {
  std::string line(flag.line);
  if (!flag.choices.empty()) line += ": " + joined(flag.choices);
  if (!flag.default_value.empty()) line.append(" [").append(flag.default_value).append("]");
  std::string head = "  " + spelling(flag);
  std::string body = wrapped(line, column);
  head.resize(std::max(column, head.size() + 2), ' ');
  std::string out = head.size() > column
                        ? head.substr(0, head.find_last_not_of(' ') + 1) + "\n" + body
                        : head + body.substr(column);
  if (length == HelpLength::full && !flag.more.empty()) out += wrapped(flag.more, 6) + "\n";
  return out;
}

std::string formats_text() {
  std::string out;
  for (const formats::Format* format : formats::registered_formats()) {
    const formats::FormatTraits& traits = format->traits();
    std::string line = compose("  {}", traits.name);
    line.resize(std::max<std::size_t>(line.size() + 2, 23), ' ');
    out += line + std::string(traits.summary);
    if (traits.written == formats::Written::no) out += " (read, not written)";
    if (!is_read_here(*format))
      out.append(" (not here: no ").append(traits.reader_program) += " beside this program)";
    out += '\n';
  }
  return out;
}

std::string exits_text(const Program& program) {
  std::string out;
  for (const ExitLine& exit : program.exits) out += compose("  {}  {}\n", exit.code, exit.line);
  return out;
}

}  // namespace

std::vector<Flag> all_flags(const Program& program) {
  std::vector<Flag> flags(program.flags.begin(), program.flags.end());
  flags.push_back(flag("Other", "-h, --help", "-h in short, --help in full"));
  flags.push_back(flag("Other", "-V, --version",
                       program.formats == Formats::listed ? "version and formats" : "version"));
  flags.push_back(flag("Other", "--completion SHELL", "print a completion script").one_of(kShells));
  flags.push_back(flag("Other", "--man", "print the manual page"));
  return flags;
}

bool is_read_here(const formats::Format& format) {
  const std::string_view reader = format.traits().reader_program;
  if (reader.empty()) return true;
  const auto folder = libswap::program_directory();
  std::error_code failed;
  return folder && libswap::fs::exists(*folder / reader, failed);
}

std::string shape_of(const Program& program, std::string_view flags) {
  std::string out = compose("{}{}", program.name, flags);
  for (const Positional& positional : program.positionals)
    out += positional.default_value.empty() ? compose(" {}", positional.metavar)
                                            : compose(" [{}]", positional.metavar);
  return out;
}

std::string help_text(const Program& program, HelpLength length) {
  std::string out = compose("{} - {}\n\n", program.name, program.summary);
  std::size_t widest = 0;
  for (const Example& example : program.examples) widest = std::max(widest, example.command.size());
  for (const Example& example : program.examples) {
    std::string line = compose("  {}", example.command);
    line.resize(widest + 4, ' ');
    out += compose("{}{}\n", line, example.what);
  }
  out += compose("\nUsage: {}\n", shape_of(program, " [FLAGS]"));
  for (const Positional& positional : program.positionals) {
    std::string head = compose("  {}", positional.metavar);
    head.resize(std::max<std::size_t>(head.size() + 2, 12), ' ');
    out += compose("{}{}", head, positional.line);
    if (!positional.default_value.empty()) out += compose(" [{}]", positional.default_value);
    out += '\n';
  }
  const std::vector<Flag> flags = all_flags(program);
  std::size_t column = 0;
  for (const Flag& flag : flags) column = std::max(column, spelling(flag).size() + 4);
  column = std::min<std::size_t>(column, 30);
  std::string_view group;
  for (const Flag& flag : flags) {
    if (flag.group != group) out += compose("\n{}\n", flag.group);
    group = flag.group;
    out += flag_text(flag, column, length);
  }
  if (length == HelpLength::brief) return compose("{}\n{} --help says more.\n", out, program.name);
  if (program.formats == Formats::listed) out += compose("\nFORMATS\n{}", formats_text());
  out += compose("\nEXIT CODES\n{}", exits_text(program));
  if (!program.closing.empty()) out += "\n" + wrapped(program.closing, 0);
  return out;
}

std::string version_text(const Program& program) {
  std::string version = compose("{} (Ebb) {}\n", program.name, kVersion);
  if (program.formats == Formats::none) return version;
  std::vector<std::string_view> known, written;
  std::string lacks;
  for (const formats::Format* format : formats::registered_formats()) {
    const bool here = is_read_here(*format);
    if (here) known.push_back(format->name());
    if (here && format->traits().written == formats::Written::yes)
      written.push_back(format->name());
    if (!here)
      lacks += compose("lacks   {} beside this program: {} is neither read nor written\n",
                       format->traits().reader_program, format->name());
  }
  return compose("{}reads   {}\nwrites  {}\n{}", version, joined(known), joined(written), lacks);
}

}  // namespace ebb::tools
