// A file that a user named for what a program has to say. It is written whole or not at all, and
// takes the place of nothing but an earlier one of its kind: no checkpoint, and nothing behind a
// link.
#pragma once

#include <string>
#include <string_view>

#include "ebb/formats/core/result.h"

namespace ebb::tools {

struct ResultFile {
  std::string_view flag;       // that names it: "--map"
  std::string path;            // as the user gave it
  std::string_view kind;       // for messages: "shard map"
  std::string_view beginning;  // of every file of the kind, and of no other
};

// Code::usage where something else is there, or no folder for it. Before the work whose result is
// to be written.
Result<> check_replaceable(const ResultFile& file);
// Checks the same again.
Result<> write_result(const ResultFile& file, std::string_view text);

}  // namespace ebb::tools
