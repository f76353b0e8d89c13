#include "tools/cli/pages.h"

#include <algorithm>
#include <vector>

#include "ebb/formats/core/check.h"
#include "ebb/formats/registry.h"
#include "tools/cli/text.h"

namespace ebb::tools {
namespace {

std::string letter_of(const Flag& flag) { return std::string("-") + flag.letter; }

// --- man ---------------------------------------------------------------------------------------

std::string roff(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\')
      out += "\\e";
    else if (c == '-')
      out += "\\-";
    else
      out += c;
  }
  // A line that begins so would be a request.
  return out.starts_with('.') || out.starts_with('\'') ? "\\&" + out : out;
}

std::string bold(std::string_view text) { return compose("\\fB{}\\fR", roff(text)); }

std::string manual_flag(const Flag& flag) {
  std::string head = bold(compose("--{}", flag.name));
  if (flag.letter != '\0') head = compose("{}, {}", bold(letter_of(flag)), head);
  if (!flag.metavar.empty()) head += compose(" \\fI{}\\fR", roff(flag.metavar));
  std::string out = compose(".TP\n{}\n{}", head, roff(flag.line));
  if (!flag.choices.empty()) out += ": " + roff(joined(flag.choices));
  if (!flag.default_value.empty()) out += compose(" [{}]", roff(flag.default_value));
  out += '\n';
  if (!flag.more.empty()) out += compose(".br\n{}\n", roff(flag.more));
  return out;
}

// --- shells ------------------------------------------------------------------------------------

// What a flag's value can be, where that is known.
std::vector<std::string_view> words_for(const Flag& flag) {
  if (!flag.choices.empty()) return {flag.choices.begin(), flag.choices.end()};
  std::vector<std::string_view> words;
  if (flag.metavar != "FORMAT") return words;
  for (const formats::Format* format : formats::registered_formats())
    if (format->traits().written == formats::Written::yes) words.push_back(format->name());
  return words;
}

bool takes_number(const Flag& flag) {
  return flag.type == FlagType::count || flag.type == FlagType::size;
}

std::string spaced(const std::vector<std::string_view>& words) {
  std::string out;
  for (const std::string_view word : words) out.append(out.empty() ? "" : " ").append(word);
  return out;
}

std::string function_of(const Program& program) {
  std::string name = compose("_{}", program.name);
  std::ranges::replace(name, '-', '_');
  return name;
}

std::string bash_script(const Program& program) {
  std::string cases, flags;
  for (const Flag& flag : all_flags(program)) {
    flags += compose("{}--{}", flags.empty() ? "" : " ", flag.name);
    const auto words = words_for(flag);
    if (words.empty() && !takes_number(flag)) continue;
    cases += "    ";
    if (flag.letter != '\0') cases += letter_of(flag) + " | ";
    cases += compose("--{})\n", flag.name);
    cases += words.empty()
                 ? "      compopt +o default\n"
                 : compose("      COMPREPLY=($(compgen -W \"{}\" -- \"$word\"))\n", spaced(words));
    cases += "      return ;;\n";
  }
  const std::string name = function_of(program);
  return compose("# bash completion of {}\n{}() {\n", program.name, name) +
         "  local word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}\n"
         "  COMPREPLY=()\n  case $before in\n" +
         cases + "  esac\n  [[ $word == -* ]] && COMPREPLY=($(compgen -W \"" + flags +
         "\" -- \"$word\"))\n  return 0\n}\n" +
         compose("complete -o default -F {} {}\n", name, program.name);
}

// Inside of single quotes, in what _arguments reads as [...] or between colons.
std::string zsh_text(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\'')
      out += "'\\''";
    else if (c == '[' || c == ']' || c == ':' || c == '\\')
      (out += '\\') += c;
    else
      out += c;
  }
  return out;
}

std::string zsh_flag(const Flag& flag) {
  const bool valued = !flag.metavar.empty();
  const std::string name = compose("--{}{}", flag.name, valued ? "=" : "");
  std::string out;
  if (flag.repeat != Repeat::once)
    out += "'*'";
  else if (flag.letter != '\0')
    out += compose("'({} --{})'", letter_of(flag), flag.name);
  if (flag.letter == '\0')
    out += name;
  else
    out += "{" + letter_of(flag) + (valued ? "+," : ",") + name + "}";
  out += compose("'[{}]", zsh_text(flag.line));
  const auto words = words_for(flag);
  if (!words.empty())
    out += compose(":{}:({})", zsh_text(flag.metavar), spaced(words));
  else if (valued)
    out += compose(":{}:{}", zsh_text(flag.metavar), takes_number(flag) ? " " : "_files");
  return out + "'";
}

std::string zsh_script(const Program& program) {
  std::string out = compose("#compdef {}\n_arguments -s", program.name);
  for (const Flag& flag : all_flags(program)) out += " \\\n  " + zsh_flag(flag);
  std::size_t number = 0;
  for (const Positional& one : program.positionals)
    out += compose(" \\\n  '{}:{}:_files'", ++number, zsh_text(one.metavar));
  return out + "\n";
}

}  // namespace

std::string manual_page(const Program& program) {
  std::string out = compose(".TH \"{}\" 1 \"\" \"Ebb\" \"User Commands\"\n", program.name);
  out += compose(".SH NAME\n{} \\- {}\n", roff(program.name), roff(program.summary));
  out += compose(".SH SYNOPSIS\n{}\n", roff(shape_of(program, " [FLAGS]")));
  if (!program.examples.empty()) out += ".SH EXAMPLES\n";
  for (const Example& example : program.examples)
    out += compose(".TP\n{}\n{}\n", bold(example.command), roff(example.what));
  if (!program.positionals.empty()) out += ".SH ARGUMENTS\n";
  for (const Positional& one : program.positionals)
    out += compose(".TP\n\\fI{}\\fR\n{}\n", roff(one.metavar), roff(one.line));
  out += ".SH OPTIONS\n";
  std::string_view group;
  for (const Flag& flag : all_flags(program)) {
    if (flag.group != group) out += compose(".SS \"{}\"\n", roff(flag.group));
    group = flag.group;
    out += manual_flag(flag);
  }
  out += ".SH EXIT STATUS\n";
  for (const ExitLine& exit : program.exits)
    out += compose(".TP\n{}\n{}\n", bold(exit.code), roff(exit.line));
  if (!program.closing.empty()) out += compose(".SH NOTES\n{}\n", roff(program.closing));
  return out;
}

std::string completion_script(const Program& program, std::string_view shell) {
  EBB_CHECK(shell == "bash" || shell == "zsh");
  return shell == "bash" ? bash_script(program) : zsh_script(program);
}

}  // namespace ebb::tools
