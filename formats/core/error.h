// Error: what failed, as a value. One code for programs, one sentence for people, one hint to type.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "ebb/formats/core/compose.h"

namespace ebb::formats {

enum class Code : std::uint8_t {
  usage,        // the caller asked for something impossible; nothing was touched
  io,           // the operating system refused; errno is in the sentence
  no_space,     // ENOSPC or EDQUOT
  no_memory,    // a budget or an allocation is too small
  corrupt,      // bytes contradict their checksum or their own structure
  incomplete,   // a part is missing: a rank's file, a tensor's rows, the commit record
  unsupported,  // valid, but not by this version
  limit,        // a stated limit was exceeded; the sentence names the limit and its value
  busy,         // held by somebody else; try later
  moved,        // its writer replaced it while it was being read; read it again
  state,        // not now: an earlier failure or the order of calls forbids it
  layout,       // two descriptions of the same state disagree
  peer,         // another rank failed
  cancelled,    // stopped on request; can be continued
};

std::string_view name_of(Code code);

// Where it happened, for programs; people read it in the message. What is not known stays empty.
struct ErrorPlace {
  std::string file;
  std::optional<std::uint64_t> offset;  // in the file
  std::optional<std::uint32_t> rank;
  std::string tensor;
  std::optional<std::int64_t> step;
};

struct Error {
  Code code = Code::io;
  std::string message;    // "what, in file:offset, tensor, because why"; no trailing newline
  std::string hint = {};  // the next command to type, where there is one
  ErrorPlace place = {};

  // Prepends where it happened: "<context>: <message>".
  Error within(std::string_view context) &&;
  // The same for what the message speaks of, a tensor or a key: behind "file:offset: " where the
  // message begins so.
  Error about(std::string_view subject) &&;
};

}  // namespace ebb::formats

namespace ebb {
using formats::Code;
using formats::Error;
using formats::ErrorPlace;
}  // namespace ebb
