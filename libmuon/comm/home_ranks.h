// Ranks in the process that made them: what every factory of a Communicator gives out. In a child
// made by fork() calls answer Code::state, and abort and destruction tell the other ranks nothing.
#pragma once

#include <memory>

#include "ebb/libmuon/comm/communicator.h"

namespace ebb::libmuon {

std::unique_ptr<Communicator> at_home(std::unique_ptr<Communicator> ranks);

}  // namespace ebb::libmuon
