// The patterns by which a checkpoint says which of its parameters are meant: Python's regular
// expressions, matched from the start of a name as re.match does. Linear in the name's length,
// whatever the pattern; what is not known of the language is refused. Internal to
// formats/deepspeed.
#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "ebb/formats/core/result.h"

namespace ebb::formats::deepspeed {

class NamePattern {
 public:
  static Result<NamePattern> open(std::string_view pattern);

  // Whether some beginning of the name is what the pattern describes.
  bool matches(std::string_view name) const;

 private:
  using Chars = std::bitset<256>;
  enum class Op : std::uint8_t { chars, split, jump, at_start, at_end, match };
  struct Step {
    Op op = Op::match;
    std::size_t to = 0;    // jump, split
    std::size_t also = 0;  // split
    Chars chars = {};      // of which one is taken
  };
  class Parser;
  class Threads;

  std::vector<Step> steps_;
};

}  // namespace ebb::formats::deepspeed
