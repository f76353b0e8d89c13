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
  for (const Transit& transit : routes.adam) {
    const std::uint64_t own = plan.own_range(transit.param).count;
    if (!plan.in_place(transit.param, plan.gradients())) own_gradients[transit.param].resize(own);
    if (!plan.in_place(transit.param, plan.weights())) own_weights[transit.param].resize(own);
  }
  EBB_TRY_ASSIGN(staged_gradients,
                 Staging::make(plan, plan.gradients(), parts.chunks.gradient_elems()));
  EBB_TRY_ASSIGN(staged_weights, Staging::make(plan, plan.weights(), parts.chunks.weight_elems()));
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
  const std::uint32_t param = transit.param;
  if (parts.plan.in_place(param, parts.plan.gradients())) return {};
  if (parts.plan.muon(param)) return staged_gradients->at(transit);
  return std::span(own_gradients[param])
      .subspan(transit.range.first - parts.plan.own_range(param).first, transit.range.count);
}

std::span<float> Engine::Impl::own_weight(const Transit& transit) {
  const StatePlan& plan = parts.plan;
  const std::uint32_t param = transit.param;
  if (plan.in_place(param, plan.weights()))
    return bound[param] ? part_of(weights[param], plan.weights(), plan.rank(), transit)
                        : std::span<float>();
  if (plan.muon(param)) return staged_weights->at(transit);
  return std::span(own_weights[param])
      .subspan(transit.range.first - plan.own_range(param).first, transit.range.count);
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

// The gradients of the first chunk are there before any state moves: until then a step that failed
// can be made again.
Result<> Engine::Impl::begin_step() {
  EBB_TRY(gradients_in(routes.gradients_to_shards, routes.adam));
  staged_gradients->begin(parts.chunks.gradients(0));
  EBB_TRY(gradients_in(routes.gradients_to_owners, parts.chunks.gradients(0)));
  staged_weights->begin(parts.chunks.weights(0));
  chunk = 0;
  gradients_here = true;
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
void Engine::Impl::weights_out_of_chunk() {
  if (weights_owed) return;
  Result<> out = weights_out(routes.weights_from_owners, parts.chunks.weights(chunk));
  if (out && chunk + 1 == parts.chunks.count())
    out = weights_out(routes.weights_from_shards, routes.adam);
  if (!out)
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
  if (!gradients_here) {
    staged_gradients->begin(parts.chunks.gradients(chunk));
    staged_weights->begin(parts.chunks.weights(chunk));
    const auto in = gradients_in(routes.gradients_to_owners, parts.chunks.gradients(chunk));
    if (!in) return reopen(in.error());
    gradients_here = true;
  }
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
    weights_out_of_chunk();
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
    EBB_TRY(weights_out(routes.weights_from_owners, parts.chunks.weights(looked_at)));
    if (looked_at + 1 < parts.chunks.count())
      staged_weights->begin(parts.chunks.weights(looked_at + 1));
    return {};
  };
  staged_weights->begin(parts.chunks.weights(0));
  EBB_TRY(sweep->look(hand_out));
  EBB_TRY(weights_out(routes.weights_from_shards, routes.adam));
  weights_owed.reset();
  return {};
}

}  // namespace ebb::libmuon
