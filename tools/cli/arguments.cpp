#include "tools/cli/arguments.h"

#include <algorithm>
#include <boost/program_options.hpp>

#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/nearest.h"
#include "tools/cli/text.h"

namespace ebb::tools {

namespace po = boost::program_options;

namespace {

constexpr std::string_view kPositionals = "(positionals)";

Error usage(const Program& program, std::string message) {
  return {Code::usage, std::move(message), compose("{} -h shows all flags", program.name)};
}

}  // namespace

class ArgumentParser {
 public:
  explicit ArgumentParser(const Program& program) : program_(program), flags_(all_flags(program)) {}

  Result<Invocation> run(const std::vector<std::string>& words) {
    Invocation invocation;
    // What people try first; a path of that name is ./help.
    if (words == std::vector<std::string>{"help"} || words == std::vector<std::string>{"-v"}) {
      invocation.wanted =
          words.front() == "-v" ? Invocation::Wanted::version : Invocation::Wanted::brief_help;
      return invocation;
    }
    EBB_TRY_ASSIGN(const po::parsed_options parsed, parse(words));
    for (const po::option& option : parsed.options) {
      if (option.string_key == kPositionals) {
        for (const std::string& word : option.value)
          invocation.arguments.positionals_.push_back(word);
        continue;
      }
      EBB_TRY(take(option, invocation.arguments));
      invocation.wanted = wanted_by(option);
      if (invocation.wanted == Invocation::Wanted::completion)
        invocation.shell = option.value.front();
      if (invocation.wanted != Invocation::Wanted::work) return invocation;
    }
    EBB_TRY(fill_positionals(invocation.arguments.positionals_));
    return invocation;
  }

 private:
  static Invocation::Wanted wanted_by(const po::option& option) {
    if (option.string_key == "version") return Invocation::Wanted::version;
    if (option.string_key == "man") return Invocation::Wanted::manual;
    if (option.string_key == "completion") return Invocation::Wanted::completion;
    if (option.string_key != "help") return Invocation::Wanted::work;
    return option.original_tokens.front().starts_with("--") ? Invocation::Wanted::full_help
                                                            : Invocation::Wanted::brief_help;
  }

  // The only place where a library's exceptions are met; they stay inside.
  Result<po::parsed_options> parse(const std::vector<std::string>& words) const {
    po::options_description options;
    for (const Flag& flag : flags_) {
      std::string name(flag.name);
      if (flag.letter != '\0') (name += ',') += flag.letter;
      if (flag.type == FlagType::on) {
        options.add_options()(name.c_str(), "");
      } else if (flag.repeat == Repeat::list) {
        options.add_options()(name.c_str(), po::value<std::vector<std::string>>()->multitoken(),
                              "");
      } else {
        options.add_options()(name.c_str(), po::value<std::string>(), "");
      }
    }
    const std::string positionals(kPositionals);
    options.add_options()(positionals.c_str(), po::value<std::vector<std::string>>(), "");
    po::positional_options_description rest;
    rest.add(positionals.c_str(), -1);
    try {
      return po::command_line_parser(words)
          .options(options)
          .positional(rest)
          .style(po::command_line_style::unix_style & ~po::command_line_style::allow_guessing)
          .run();
    } catch (const po::unknown_option& error) {
      return unknown(error.get_option_name());
    } catch (const po::invalid_command_line_syntax& error) {
      return bad_syntax(error);
    } catch (const po::error& error) {
      return usage(program_, error.what());
    }
  }

  Error unknown(const std::string& option) const {
    std::vector<std::string> names;
    for (const Flag& flag : flags_) names.emplace_back(flag.name);
    const std::string_view name = std::string_view(option).substr(0, option.find('='));
    Error error = usage(program_, "unknown flag " + printable(name));
    const auto bare = name.substr(std::min(name.find_first_not_of('-'), name.size()));
    if (const auto meant = formats::nearest(bare, names))
      error.hint = "did you mean --" + *meant + "?";
    return error;
  }

  Error bad_syntax(const po::invalid_command_line_syntax& error) const {
    const std::string option = printable(error.get_option_name());
    using Kind = po::invalid_command_line_syntax;
    if (error.kind() == Kind::extra_parameter) return usage(program_, option + " takes no value");
    if (error.kind() == Kind::missing_parameter || error.kind() == Kind::empty_adjacent_parameter)
      return usage(program_, option + " needs a value");
    return usage(program_, error.what());
  }

  Result<> take(const po::option& option, Arguments& arguments) const {
    const auto flag = std::ranges::find(flags_, option.string_key, &Flag::name);
    EBB_CHECK(flag != flags_.end());
    std::vector<std::string>& values = arguments.values_[std::string(flag->name)];
    if (!values.empty() && flag->repeat == Repeat::once)
      return usage(program_, compose("--{} is given twice", flag->name));
    if (option.value.empty()) values.emplace_back();
    values.insert(values.end(), option.value.begin(), option.value.end());
    for (const std::string& value : values) EBB_TRY(check(*flag, value));
    return {};
  }

  Result<> check(const Flag& flag, const std::string& value) const {
    const std::string name = compose("--{}", flag.name);
    const std::string found = ", not '" + printable(value) + "'";
    if (flag.type != FlagType::on && value.empty())
      return usage(program_, name + " needs a value that is not empty");
    if (flag.type == FlagType::count && !parse_count(value))
      return usage(program_, name + " takes a whole number" + found);
    if (flag.type == FlagType::size && !parse_size(value))
      return usage(program_, name + " takes a size such as 64KiB or 5GB" + found);
    if (flag.type != FlagType::choice) return {};
    if (std::find(flag.choices.begin(), flag.choices.end(), value) != flag.choices.end()) return {};
    Error error =
        usage(program_, compose("{} takes one of {}{}", name, joined(flag.choices), found));
    if (const auto meant = formats::nearest(
            value, std::vector<std::string>(flag.choices.begin(), flag.choices.end())))
      error.hint = compose("did you mean {} {}?", name, *meant);
    return error;
  }

  Result<> fill_positionals(std::vector<std::string>& found) const {
    for (const std::string& word : found)
      if (word.empty()) return usage(program_, "an empty path");
    for (const Positional& one :
         program_.positionals.subspan(std::min(found.size(), program_.positionals.size())))
      if (!one.default_value.empty()) found.emplace_back(one.default_value);
    if (found.size() < program_.positionals.size()) {
      Error error =
          usage(program_, compose("{} is missing", program_.positionals[found.size()].metavar));
      error.hint = compose("{} ...; {}", shape_of(program_, ""), error.hint);
      return error;
    }
    if (found.size() > program_.positionals.size())
      return usage(program_,
                   "one argument too many: " + printable(found[program_.positionals.size()]));
    return {};
  }

  const Program& program_;
  const std::vector<Flag> flags_;
};

bool Arguments::has(std::string_view flag) const { return values_.find(flag) != values_.end(); }

std::optional<std::string> Arguments::text(std::string_view flag) const {
  const auto found = values_.find(flag);
  if (found == values_.end()) return std::nullopt;
  return found->second.back();
}

std::vector<std::string> Arguments::texts(std::string_view flag) const {
  const auto found = values_.find(flag);
  return found == values_.end() ? std::vector<std::string>{} : found->second;
}

std::optional<std::uint64_t> Arguments::count(std::string_view flag) const {
  const auto value = text(flag);
  return value ? parse_count(*value) : std::nullopt;
}

std::optional<std::uint64_t> Arguments::size(std::string_view flag) const {
  const auto value = text(flag);
  return value ? parse_size(*value) : std::nullopt;
}

Result<Invocation> parse_command_line(const Program& program,
                                      const std::vector<std::string>& words) {
  return ArgumentParser(program).run(words);
}

}  // namespace ebb::tools
