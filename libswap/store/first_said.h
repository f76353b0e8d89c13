// A sentence of one rank for all, by nothing but agreements: why something failed there.
#pragma once

#include <string>
#include <string_view>

#include "ebb/libswap/store/agreement.h"

namespace ebb::libswap {

// Collective: what the lowest of those ranks says that say anything, the same on every rank; ""
// where none does.
Result<std::string> first_said(Agreement& ranks, Rank rank, std::string_view mine);

}  // namespace ebb::libswap
