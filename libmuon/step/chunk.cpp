// A step's chunks: what travels for each, what is swept, and how it all ended.
#include <algorithm>
#include <chrono>
#include <utility>

#include "ebb/libmuon/comm/together.h"
#include "ebb/libmuon/step/engine_impl.h"
#include "ebb/libswap/sys/process.h"

namespace ebb::libmuon {

using libswap::Buffer;
using libswap::Lane;
using libswap::TraceSpan;

Buffer Engine::Impl::own_gradient(const Transit& transit, std::size_t chunk) {
  const StatePlan& plan = parts.plan;
  const std::uint32_t param = transit.param;
  if (!gradients->absent().has_gradient(param)) return {};
  if (plan.in_place(param, transit.range.first, plan.gradients())) return gradients->of(transit);
  return staging->at(Staging::Kind::gradients, chunk, transit);
}

Buffer Engine::Impl::own_weight(const Transit& transit, std::size_t chunk) {
  const StatePlan& plan = parts.plan;
  const std::uint32_t param = transit.param;
  if (plan.in_place(param, transit.range.first, plan.weights()))
    return bound[param] ? bound_weight(transit) : Buffer();
  return staging->at(Staging::Kind::weights, chunk, transit);
}

Result<double> Engine::Impl::travel(const char* what, const Run& run) {
  const TraceSpan span(config.trace, parts.plan.rank(), Lane::exchange, what);
  const auto begin = std::chrono::steady_clock::now();
  EBB_TRY_ASSIGN(const std::uint64_t sent, run());
  const double took = libswap::seconds_since(begin);
  const libswap::MutexLock lock(beside_mutex);
  beside.sent_bytes += sent;
  beside.exchange_s += took;
  return took;
}

Result<> Engine::Impl::travel_in_step(const char* what, const Run& run) {
  const double swept = flow->sweeping_s();
  EBB_TRY_ASSIGN(const double took, travel(what, run));
  const double hidden = flow->sweeping_s() - swept;
  const libswap::MutexLock lock(beside_mutex);
  beside.exposed_exchange_s += std::max(0.0, took - hidden);
  return {};
}

Result<std::uint64_t> Engine::Impl::bring_gradients(const Exchange& exchange,
                                                    std::span<const Transit> transits,
                                                    std::size_t chunk, const Travels& travels) {
  const StatePlan& plan = parts.plan;
  const auto handed_in = [&](const Transit& transit) { return gradients->of(transit); };
  // Nothing where the trainer's own buffers hold it.
  const auto gathered = [&](const Transit& transit) {
    return plan.in_place(transit.param, transit.range.first, plan.gradients())
               ? Buffer()
               : staging->at(Staging::Kind::gradients, chunk, transit);
  };
  for (const Transit& transit : transits)
    if (travels(transit.param)) gradients->wait_for(transit.param);
  return exchange.run(*wire, transits, {handed_in, gathered}, travels);
}

Result<> Engine::Impl::gradients_in(std::size_t chunk) {
  if (partial() && config.partial_sums == PartialSums::kept) return {};
  if (partial()) return sum_parts(chunk);
  staging->begin(Staging::Kind::gradients, chunk);
  const bool came = chunk + flow->came_early() >= parts.chunks.count();
  return travel_in_step("gradients in", [&]() -> Result<std::uint64_t> {
    std::uint64_t adam = 0, matrices = 0;
    if (chunk == 0) {
      EBB_TRY_ASSIGN(
          adam, bring_gradients(routes.gradients_to_shards, routes.adam, chunk, with_gradients()));
    }
    if (!came) {
      EBB_TRY_ASSIGN(matrices,
                     bring_gradients(routes.gradients_to_owners, parts.chunks.gradients(chunk),
                                     chunk, with_gradients()));
    }
    return adam + matrices;
  });
}

// However long some rank's takes. What is not finite on one of them comes to none.
Result<> Engine::Impl::results_in(std::size_t chunk) {
  if (parts.chunks.results(chunk).empty()) return {};
  EBB_TRY(together(*flow_ranks, "orthogonalizing", [this] { return updates->made(); }));
  return travel_in_step("results apart", [&] {
    return routes.results_apart.run(
        *wire, parts.chunks.results(chunk),
        {[&](const Transit& whole) { return updates->whole(Updates::Kind::result, chunk, whole); },
         [&](const Transit& part) { return updates->part(Updates::Kind::result, chunk, part); }},
        touched());
  });
}

Result<> Engine::Impl::updates_together(std::size_t chunk) {
  if (parts.chunks.updates(chunk).empty()) return {};
  EBB_TRY(travel_in_step("updates together", [&] {
    return routes.updates_together.run(
        *wire, parts.chunks.updates(chunk),
        {[&](const Transit& part) { return updates->part(Updates::Kind::update, chunk, part); },
         [&](const Transit& whole) { return updates->whole(Updates::Kind::update, chunk, whole); }},
        touched());
  }));
  updates->orthogonalize(chunk, gradients->absent(), computing->bf16());
  return {};
}

Result<> Engine::Impl::gradients_in_early(std::size_t piece) {
  const std::size_t chunk = parts.chunks.count() - 1 - piece;
  const std::span<const Transit> planned = parts.chunks.gradients(chunk);
  EBB_TRY_ASSIGN(const auto said, gradients->absent().gradients_said(*flow_ranks, planned));
  EBB_TRY(travel("gradients in early", [&] {
    return bring_gradients(routes.gradients_to_owners, planned, chunk,
                           [&](std::uint32_t param) { return said.contains(param); });
  }));
  return {};
}

Result<> Engine::Impl::weights_out(std::size_t chunk, const Travels& travels) {
  const auto own = [&](const Transit& transit) { return own_weight(transit, chunk); };
  const auto there = [this](const Transit& transit) { return bound_weight(transit); };
  return travel_in_step("weights out", [&]() -> Result<std::uint64_t> {
    const auto bring = [&](const Exchange& exchange, std::span<const Transit> transits) {
      return exchange.run(*wire, transits, {own, there}, travels);
    };
    EBB_TRY_ASSIGN(const std::uint64_t matrices,
                   bring(routes.weights_from_owners, parts.chunks.weights(chunk)));
    EBB_TRY_ASSIGN(const std::uint64_t adam,
                   bring(routes.weights_from_shards, parts.chunks.adam_weights(chunk)));
    if (handed_out) handed_out->note(chunk, travels, there);
    return matrices + adam;
  });
}

bool Engine::Impl::turn_to(std::size_t chunk) {
  if (!flow->may_sweep(chunk)) return false;
  staging->begin(Staging::Kind::weights, chunk);
  return true;
}

Result<> Engine::Impl::sweep_chunk(std::size_t chunk) {
  const auto begin = std::chrono::steady_clock::now();
  const auto stalls = [&] {
    const libswap::PagerStats pager = sweep->cache().stats();
    return pager.stall_read_s + pager.stall_cut_s;
  };
  const double stalled = stalls();
  const Result<> swept = sweep->update(chunk);
  const double computed = libswap::seconds_since(begin) - (stalls() - stalled);
  const libswap::MutexLock lock(beside_mutex);
  beside.compute_s += computed;
  return swept;
}

// The state moves from its first chunk on: whatever fails then, this gradient is never applied
// again to what has seen it. Before, the step can be made again.
void Engine::Impl::begin_update(float grad_scale) {
  const auto update = [this, grad_scale, begun = false]() mutable -> Result<> {
    for (std::size_t chunk = flow->next_to_sweep(); turn_to(chunk); ++chunk) {
      if (!std::exchange(begun, true))
        sweep->begin_update(steps.now() + 1, grad_scale, gradients->absent());
      const Result<> swept = sweep_chunk(chunk);
      if (sweep->spoiled()) flow->spoil();
      EBB_TRY(swept);
      flow->swept();
    }
    return {};
  };
  fly();
  flow->begin({.chunks = parts.chunks.count(),
               .in = [this](std::size_t chunk) -> Result<> {
                 EBB_TRY(highs_in(chunk, touched()));
                 EBB_TRY(gradients_in(chunk));
                 return results_in(chunk);
               },
               .out = [this](std::size_t chunk) { return weights_out(chunk, touched()); },
               .between = [this](std::size_t chunk) { return updates_together(chunk); },
               .sweep = update,
               .doing = "sweeping its state",
               .uses_up_early = true});
}

void Engine::Impl::fly() {
  const libswap::MutexLock lock(ending);
  in_flight = true;
}

void Engine::Impl::take_over_beside() {
  const libswap::MutexLock lock(beside_mutex);
  stats.sent_bytes += beside.sent_bytes;
  stats.exchange_s += beside.exchange_s;
  stats.exposed_exchange_s += beside.exposed_exchange_s;
  stats.compute_s += beside.compute_s;
  beside = {};
}

void Engine::Impl::end_step() {
  const libswap::MutexLock lock(ending);
  if (!std::exchange(in_flight, false)) return;
  const Flow::Ended ended = flow->wait();
  take_over_beside();
  stats.step_s += std::chrono::duration<double>(ended.at - step_began).count();
  if (config.trace != nullptr)
    config.trace->add_step(parts.plan.rank(), step_name, steps.now() + 1, step_began, ended.at);
  step_outcome = outcome_of(ended);
}

Result<StepResult> Engine::Impl::outcome_of(const Flow::Ended& ended) {
  if (ended.not_out)
    // High halves that did not reach the trainer are nowhere else.
    (in_halves() ? broken : weights_owed) =
        Error{Code::state,
              compose("the weights of step {} were not handed out to all ranks: {}",
                      steps.now() + 1, ended.not_out->message),
              way_back()};
  const std::string where =
      compose("this engine stopped in the middle of step {}: ", steps.now() + 1);
  switch (ended.how) {
    case Flow::Ended::How::whole:
      break;
    case Flow::Ended::How::stopped:
      stopped = Error{Code::state, where + ended.why->message,
                      "continue_step() goes on with it, abandon_step() goes back to the last "
                      "committed generation"};
      return *ended.why;
    case Flow::Ended::How::spoiled:
    case Flow::Ended::How::apart:
      if (ended.begun)
        broken = Error{Code::state, where + ended.why->message,
                       "open the store again: the last committed generation resumes"};
      return *ended.why;
  }
  steps.count(gradients->absent());
  gradients->forget();
  ++stats.steps;
  if (!ended.not_out) return running;
  // What happened to this step; the next call is out of order.
  Error why = in_halves() ? *broken : *weights_owed;
  why.code = ended.not_out->code;
  return why;
}

}  // namespace ebb::libmuon
