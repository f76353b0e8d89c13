// Whether a Communicator does what one owes its ranks: asked of every one that an engine is given,
// because whoever writes one may get it wrong in ways that no type shows, and wrong sums look
// right.
#pragma once

#include "ebb/libmuon/comm/communicator.h"

namespace ebb::libmuon {

// Collective, five small calls. Code::usage names the verb that does not do its work, on each rank
// that sees it; that rank gives up. Its own errors are answered as they are.
Result<> check_communicator(Communicator& ranks);
// Code::usage where the duplicate is not one of the same ranks.
Result<> check_duplicate(const Communicator& of, const Communicator& duplicate);

}  // namespace ebb::libmuon
