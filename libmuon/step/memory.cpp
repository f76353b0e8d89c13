#include "ebb/libmuon/step/memory.h"

#include <algorithm>

#include "ebb/libmuon/step/gradient_sums.h"
#include "ebb/libmuon/step/routes.h"
#include "ebb/libmuon/step/side.h"
#include "ebb/libmuon/step/staging.h"

namespace ebb::libmuon {

namespace {

// Of what lies where the communicator does not take it, what travels in one round.
std::uint64_t bounce_bytes(const EngineConfig& config, const StatePlan& plan, const Chunks& chunks,
                           Side wire) {
  if (wire == Side::device || config.accelerator == nullptr) return 0;
  const bool gradients = device_of(config, config.gradients_on) != nullptr;
  const bool weights = device_of(config, config.weights_on) != nullptr;
  const auto any = [](const Transit&) { return true; };
  const Exchange::Bounced both{.sent = any, .received = any};
  const Exchange::Bounced in{.sent = [&](const Transit&) { return gradients; },
                             .received = [](const Transit&) { return false; }};
  const Exchange::Bounced out{.sent =
                                  [&](const Transit& part) {
                                    return weights && plan.in_place(part.param, part.range.first,
                                                                    plan.weights());
                                  },
                              .received = [&](const Transit&) { return weights; }};
  const Exchange::Bounced back{.sent = [&](const Transit&) { return weights; },
                               .received = [](const Transit&) { return false; }};
  const Routes routes(plan);
  std::uint64_t most = std::max(routes.gradients_to_shards.bounce_bytes(routes.adam, in),
                                routes.weights_to_shards.bounce_bytes(routes.adam, back));
  for (std::size_t chunk = 0; chunk < chunks.count(); ++chunk)
    most = std::max({most, routes.gradients_to_owners.bounce_bytes(chunks.gradients(chunk), in),
                     routes.weights_to_owners.bounce_bytes(chunks.weights(chunk), back),
                     routes.weights_from_owners.bounce_bytes(chunks.weights(chunk), out),
                     routes.weights_from_shards.bounce_bytes(chunks.adam_weights(chunk), out),
                     routes.updates_together.bounce_bytes(chunks.updates(chunk), both),
                     routes.results_apart.bounce_bytes(chunks.results(chunk), both)});
  return most;
}

// The most room that parts of sums take on their way.
std::uint64_t part_bytes(const EngineConfig& config, const StatePlan& plan, const Chunks& chunks) {
  if (config.partition.hand_in != HandIn::partial) return 0;
  const Reductions reductions(plan, config.chunk_bytes);
  std::uint64_t most = reductions.to_shards.room_bytes(adam_ranges(plan));
  for (std::size_t chunk = 0; chunk < chunks.count(); ++chunk)
    most = std::max(most, reductions.to_owners.room_bytes(chunks.gradients(chunk)));
  return most;
}

std::uint64_t look_bytes(const EngineConfig& config) {
  const bool there = device_of(config, config.gradients_on) != nullptr ||
                     device_of(config, config.weights_on) != nullptr;
  return there ? sizeof(Look) : 0;
}

}  // namespace

Memory memory_beside_tiles(const EngineConfig& config, const StatePlan& plan, const Chunks& chunks,
                           std::size_t lasting_chunks, Side wire) {
  if (config.partition.hand_in == HandIn::partial) wire = Side::host;
  return {.workspace = Sweep::workspace(config.model, plan, config.accelerator),
          .staging = Staging::bytes({plan, chunks, adam_ranges(plan), lasting_chunks}),
          .bounce = bounce_bytes(config, plan, chunks, wire),
          .parts = part_bytes(config, plan, chunks),
          .wire = config.accelerator != nullptr ? wire : Side::host,
          .sums = config.partition.hand_in == HandIn::added ? GradientSums::bytes(plan) : 0,
          .gradients = config.accelerator != nullptr ? config.gradients_on : Side::host,
          .look = look_bytes(config),
          .updates = Updates::bytes({config.model, plan, chunks, config.accelerator})};
}

std::uint64_t device_bytes(const Memory& memory, const libswap::Homes& homes,
                           std::uint64_t tile_bytes) {
  return memory.device() + homes.count(libswap::Tier::device) * tile_bytes;
}

}  // namespace ebb::libmuon
