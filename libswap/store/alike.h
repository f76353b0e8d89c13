// What every rank must have been told alike, by name: a rank with settings of its own would make
// its part of the state another one, and nobody would notice.
#pragma once

#include <span>
#include <string>

#include "ebb/libswap/store/agreement.h"

namespace ebb::libswap {

struct Setting {
  std::string name;
  std::string value;
};

// Collective. Code::usage on every rank unless all were told the same; names the first that
// differs.
Result<> same_everywhere(Ranks& ranks, std::span<const Setting> settings);

}  // namespace ebb::libswap
