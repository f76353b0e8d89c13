// What handles lead to.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "bindings/c/handles.h"
#include "ebb/libmuon/comm/socket_ranks.h"
#include "ebb/libmuon/step/engine.h"
#include "ebb/libswap/queue/io_queue.h"

namespace ebb::c {

struct ListenerObject {
  libmuon::SocketListener listener;
};

struct RanksObject {
  std::unique_ptr<libmuon::Communicator> ranks;
};

// Destroyed from the last to the first.
struct EngineObject {
  std::shared_ptr<RanksObject> ranks;
  std::unique_ptr<libswap::IoQueue> io;
  std::vector<std::unique_ptr<libswap::SwapDirectory>> directories;  // the last is the state's
  std::unique_ptr<libmuon::Engine> engine;
  std::vector<std::string> names;  // of parameters
  std::uint32_t groups = 0;
};

Handles<ListenerObject>& listeners();
Handles<RanksObject>& ranks_handles();
Handles<EngineObject>& engines();

}  // namespace ebb::c
