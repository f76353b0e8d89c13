// Command line -> validated arguments, or the sentence why not (Code::usage) with the nearest flag.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ebb/formats/core/result.h"
#include "tools/cli/program.h"

namespace ebb::tools {

class Arguments {
 public:
  // REQUIRES below: the name is in the program's table and has that type.
  bool has(std::string_view flag) const;
  std::optional<std::string> text(std::string_view flag) const;  // also a choice
  std::vector<std::string> texts(std::string_view flag) const;
  std::optional<std::uint64_t> count(std::string_view flag) const;
  std::optional<std::uint64_t> size(std::string_view flag) const;
  const std::string& positional(std::size_t index) const { return positionals_.at(index); }

 private:
  friend class ArgumentParser;
  std::map<std::string, std::vector<std::string>, std::less<>> values_;
  std::vector<std::string> positionals_;
};

struct Invocation {
  enum class Wanted : std::uint8_t { work, brief_help, full_help, version, manual, completion };
  Wanted wanted = Wanted::work;
  std::string shell;  // whose completion
  Arguments arguments;
};

// `words` without the program's own name.
Result<Invocation> parse_command_line(const Program& program,
                                      const std::vector<std::string>& words);

// "12", never "-1", "0x10", "1e9" or "12 "; nullopt when it is none or does not fit.
std::optional<std::uint64_t> parse_count(std::string_view text);
// A number with an optional unit: B, K, KB, KiB, ... T. KB is 1000, K and KiB are 1024.
std::optional<std::uint64_t> parse_size(std::string_view text);

}  // namespace ebb::tools
