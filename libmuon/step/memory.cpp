#include "ebb/libmuon/step/memory.h"

#include <algorithm>

#include "ebb/libmuon/step/edges.h"
#include "ebb/libmuon/step/gradient_sums.h"
#include "ebb/libmuon/step/side.h"
#include "ebb/libmuon/step/staging.h"
#include "ebb/libmuon/step/updates.h"

namespace ebb::libmuon {

namespace {

// Of what lies where the communicator does not take it, what travels in one round.
std::uint64_t bounce_bytes(const EngineConfig& config, const StatePlan& plan, const Edges& edges,
                           Side wire) {
  if (wire == Side::device || config.accelerator == nullptr) return 0;
  const bool weights = device_of(config, config.weights_on) != nullptr;
  const auto any = [](const Transit&) { return true; };
  const Exchange::Bounced both{.sent = any, .received = any};
  const Exchange::Bounced out{.sent =
                                  [&](const Transit& part) {
                                    return weights && plan.in_place(part.param, part.range.first,
                                                                    plan.weights());
                                  },
                              .received = [&](const Transit&) { return weights; }};
  const Exchange::Bounced back{.sent = [&](const Transit&) { return weights; },
                               .received = [](const Transit&) { return false; }};
  return std::max({edges.gradients_bounced(config.gradients_on), edges.bound.bounce_bytes(back),
                   edges.weights.bounce_bytes(out), edges.updates.bounce_bytes(both),
                   edges.results.bounce_bytes(both)});
}

std::uint64_t look_bytes(const EngineConfig& config) {
  const bool there = device_of(config, config.gradients_on) != nullptr ||
                     device_of(config, config.weights_on) != nullptr;
  return there ? sizeof(Look) : 0;
}

// Of a sweep: its whole matrices, and the tiles that it lifts to a device.
std::uint64_t workspace_bytes(const EngineConfig& config, const StatePlan& plan,
                              const WholeUpdates::Need& whole) {
  const bool lifts = config.accelerator != nullptr;
  return whole.all() + (lifts ? libswap::Lift::device_bytes(lifted(plan)) : 0);
}

}  // namespace

libswap::Lift::Size lifted(const StatePlan& plan) { return {plan.tile_bytes(), plan.tile_elems()}; }

Memory memory_beside_tiles(const EngineConfig& config, const StatePlan& plan, const Chunks& chunks,
                           std::size_t lasting_chunks, Side wire) {
  if (config.partition.hand_in == HandIn::partial) wire = Side::host;
  const Edges edges(plan, chunks, config.chunk_bytes);
  const Side gradients_on = config.accelerator != nullptr ? config.gradients_on : Side::host;
  const auto whole = WholeUpdates::need(config.model, plan, config.accelerator);
  return {.whole = whole,
          .workspace = workspace_bytes(config, plan, whole),
          .updates = Updates::bytes({config.model, plan, chunks, config.accelerator}),
          .computing = config.accelerator != nullptr ? Side::device : Side::host,
          .staging = Staging::bytes({plan, chunks, adam_ranges(plan), lasting_chunks}),
          .bounce = bounce_bytes(config, plan, edges, wire),
          .parts = edges.part_bytes(gradients_on),
          .wire = config.accelerator != nullptr ? wire : Side::host,
          .sums = config.partition.hand_in == HandIn::added ? GradientSums::bytes(plan) : 0,
          .gradients = gradients_on,
          .look = look_bytes(config)};
}

std::uint64_t device_bytes(const Memory& memory, const libswap::Homes& homes,
                           std::uint64_t tile_bytes) {
  return memory.device() + homes.count(libswap::Tier::device) * tile_bytes;
}

}  // namespace ebb::libmuon
