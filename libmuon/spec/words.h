// The words of settings: that each is one of those that there are.
#pragma once

#include "ebb/libmuon/spec/spec.h"

namespace ebb::libmuon {

// Of values that a caller made of numbers. Code::usage names the setting and the words it may be.
Result<> check_words(const MuonSpec& spec);

}  // namespace ebb::libmuon
