// A step's chunks: gradients in, sweep, weights out, one after the other.
#include <chrono>

#include "ebb/libmuon/step/engine_impl.h"
#include "ebb/libswap/sys/process.h"

namespace ebb::libmuon {

using libswap::Lane;
using libswap::TraceSpan;

namespace {

// The part of a trainer's buffer of a parameter that holds the range.
template <typename T>
std::span<T> part_of(std::span<T> held, const Layout& trainer, Rank rank, const Transit& transit) {
  const std::uint64_t first = trainer.held(transit.param, rank).first;
  return held.subspan(transit.range.first - first, transit.range.count);
}

}  // namespace

Result<> Engine::Impl::reserve_buffers() {
  const StatePlan& plan = parts.plan;
  EBB_TRY_ASSIGN(staged_gradients,
                 Staging::make(plan, plan.gradients(), routes.adam, parts.memory.chunk_gradients));
  EBB_TRY_ASSIGN(staged_weights,
                 Staging::make(plan, plan.weights(), routes.adam, parts.memory.chunk_weights));
  return {};
}

std::span<const float> Engine::Impl::own_gradient(const Transit& transit) {
  const StatePlan& plan = parts.plan;
  const std::uint32_t param = transit.param;
  if (plan.in_place(param, plan.gradients()))
    return part_of(gradients[param], plan.gradients(), plan.rank(), transit);
  return gathered_gradient(transit);
}

std::span<float> Engine::Impl::gathered_gradient(const Transit& transit) {
  if (parts.plan.in_place(transit.param, parts.plan.gradients())) return {};
  return staged_gradients->at(transit);
}

std::span<float> Engine::Impl::own_weight(const Transit& transit) {
  const StatePlan& plan = parts.plan;
  const std::uint32_t param = transit.param;
  if (plan.in_place(param, plan.weights()))
    return bound[param] ? part_of(weights[param], plan.weights(), plan.rank(), transit)
                        : std::span<float>();
  return staged_weights->at(transit);
}

Result<> Engine::Impl::gradients_in(const Exchange& exchange, std::span<const Transit> transits) {
  const StatePlan& plan = parts.plan;
  const TraceSpan span(config.trace, plan.rank(), Lane::exchange, "gradients in");
  const auto begin = std::chrono::steady_clock::now();
  const auto handed_in = [&](const Transit& transit) {
    return part_of(gradients[transit.param], plan.gradients(), plan.rank(), transit);
  };
  const auto gathered = [&](const Transit& transit) { return gathered_gradient(transit); };
  EBB_TRY_ASSIGN(const std::uint64_t sent, exchange.run(ranks, transits, handed_in, gathered));
  stats.sent_bytes += sent;
  stats.exchange_s += libswap::seconds_since(begin);
  return {};
}

Result<> Engine::Impl::weights_out(const Exchange& exchange, std::span<const Transit> transits) {
  const StatePlan& plan = parts.plan;
  const TraceSpan span(config.trace, plan.rank(), Lane::exchange, "weights out");
  const auto begin = std::chrono::steady_clock::now();
  const auto own = [&](const Transit& transit) {
    return std::span<const float>(own_weight(transit));
  };
  const auto handed_out = [&](const Transit& transit) {
    return part_of(weights[transit.param], plan.weights(), plan.rank(), transit);
  };
  EBB_TRY_ASSIGN(const std::uint64_t sent, exchange.run(ranks, transits, own, handed_out));
  stats.sent_bytes += sent;
  stats.exchange_s += libswap::seconds_since(begin);
  return {};
}

Result<> Engine::Impl::begin_chunk() {
  staged_gradients->begin(parts.chunks.gradients(chunk));
  staged_weights->begin(parts.chunks.weights(chunk));
  if (chunk == 0) EBB_TRY(gradients_in(routes.gradients_to_shards, routes.adam));
  EBB_TRY(gradients_in(routes.gradients_to_owners, parts.chunks.gradients(chunk)));
  gradients_here = true;
  return {};
}

Result<> Engine::Impl::end_chunk(std::size_t number) {
  EBB_TRY(weights_out(routes.weights_from_owners, parts.chunks.weights(number)));
  if (number + 1 == parts.chunks.count())
    EBB_TRY(weights_out(routes.weights_from_shards, routes.adam));
  return {};
}

Result<> Engine::Impl::sweep_chunk() {
  const auto begin = std::chrono::steady_clock::now();
  const auto stalls = [&] {
    const libswap::PagerStats pager = sweep->cache().stats();
    return pager.stall_read_s + pager.stall_cut_s;
  };
  const double stalled = stalls();
  const Result<> swept = sweep->update(chunk);
  stats.compute_s += libswap::seconds_since(begin) - (stalls() - stalled);
  return swept;
}

// A chunk's weights that could not be handed out do not hold back the others' state.
void Engine::Impl::hand_out_chunk() {
  if (weights_owed) return;
  if (const Result<> out = end_chunk(chunk); !out)
    weights_owed = Error{Code::state,
                         compose("the weights of step {} were not handed out to all ranks: {}",
                                 step + 1, out.error().message),
                         "install_weights() hands them out"};
}

// Gradients in, unless they are there, and the state of the chunk: on all ranks, or stopped.
Result<> Engine::Impl::run_chunk() {
  const std::string where = compose("this engine stopped in the middle of step {}: ", step + 1);
  const auto reopen = [&](const Error& cause) {
    broken = Error{Code::state, where + cause.message,
                   "open the store again: the last committed generation resumes"};
    return cause;
  };
  if (!gradients_here)
    if (const Result<> begun = begin_chunk(); !begun) return reopen(begun.error());
  const Result<> swept = sweep_chunk();
  const Result<std::int64_t> all_swept = ranks.agree(swept ? 1 : 0);
  if (!all_swept) return reopen(all_swept.error());
  if (*all_swept == 1) {
    stopped.reset();
    gradients_here = false;
    return {};
  }
  const Error cause = swept ? Error{Code::peer, "another rank failed while sweeping its state",
                                    "its own message says why"}
                            : swept.error();
  stopped = Error{Code::state, where + cause.message,
                  "continue_step() goes on with it, abandon_step() goes back to the last committed "
                  "generation"};
  return cause;
}

// From here on the state moves: whatever fails, this gradient is never applied again to what has
// seen it.
Result<StepResult> Engine::Impl::finish_step() {
  for (; chunk < parts.chunks.count(); ++chunk) {
    EBB_TRY(run_chunk());
    hand_out_chunk();
  }
  gradient_given.assign(gradient_given.size(), false);
  ++step;
  ++stats.steps;
  if (weights_owed) return *weights_owed;
  return running;
}

// All weights, by the chunks of a step.
Result<> Engine::Impl::install() {
  const auto hand_out = [this](std::size_t looked_at, const Result<>& looked) -> Result<> {
    EBB_TRY(agree_all(looked, "reading its weights"));
    EBB_TRY(end_chunk(looked_at));
    if (looked_at + 1 < parts.chunks.count())
      staged_weights->begin(parts.chunks.weights(looked_at + 1));
    return {};
  };
  staged_weights->begin(parts.chunks.weights(0));
  EBB_TRY(sweep->look(hand_out));
  weights_owed.reset();
  return {};
}

}  // namespace ebb::libmuon
