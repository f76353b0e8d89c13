// Setup: what an engine was opened with, and what follows from it. All of its rooms borrow it.
//
// Threading: constant after construction, for any thread, but for the settings of the model's
// groups: the thread that drives the engine changes them while nothing is under way (Engine::set),
// Flow::begin() publishes them.
#pragma once

#include <utility>

#include "ebb/libmuon/comm/communicator.h"
#include "ebb/libmuon/step/config.h"
#include "ebb/libmuon/step/edges.h"
#include "ebb/libmuon/step/prepare.h"
#include "ebb/libswap/queue/io_queue.h"

namespace ebb::libmuon {

struct Setup {
  Setup(const EngineConfig& engine_config, Communicator& communicator, libswap::IoQueue& queue,
        Prepared planned)
      : config(engine_config),
        ranks(communicator),
        io(queue),
        prepared(std::move(planned)),
        edges(prepared.plan, prepared.chunks, config.chunk_bytes) {}
  Setup(const Setup&) = delete;
  Setup& operator=(const Setup&) = delete;

  const StatePlan& plan() const { return prepared.plan; }
  const Chunks& chunks() const { return prepared.chunks; }
  Rank rank() const { return prepared.plan.rank(); }
  // What the trainer has bound (Columns).
  bool bound_masters() const { return prepared.plan.columns().bound_masters(); }
  bool in_halves() const { return prepared.plan.columns().in_halves(); }
  bool partial() const { return config.partition.hand_in == HandIn::partial; }
  // Whether the staged gradients of the chunk's matrices have a place until they are used.
  bool lasting(std::size_t chunk) const {
    return chunk + prepared.lasting_chunks >= prepared.chunks.count();
  }

  EngineConfig config;
  Communicator& ranks;  // the trainer's
  libswap::IoQueue& io;
  const Prepared prepared;
  const Edges edges;
};

}  // namespace ebb::libmuon
