#include "ebb/libmuon/step/step_run.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "ebb/libmuon/comm/check_communicator.h"
#include "ebb/libmuon/step/norm.h"
#include "ebb/libswap/sys/process.h"

namespace ebb::libmuon {

using libswap::Lane;
using libswap::MutexLock;
using libswap::TraceSpan;

StepRun::StepRun(const Setup& setup, const Computing& computing, const Gradients& gradients,
                 const StepCount& steps, std::unique_ptr<ChunkExchange> exchange)
    : setup_(setup),
      computing_(computing),
      gradients_(gradients),
      steps_(steps),
      exchange_(std::move(exchange)) {}

Result<std::unique_ptr<StepRun>> StepRun::make(const Setup& setup, const Computing& computing,
                                               const Gradients& gradients, Weights& weights,
                                               const StepCount& steps) {
  EBB_TRY_ASSIGN(auto exchange, ChunkExchange::make(setup, computing, gradients, weights));
  return std::unique_ptr<StepRun>(
      new StepRun(setup, computing, gradients, steps, std::move(exchange)));
}

Result<> StepRun::start() {
  Communicator& ranks = setup_.ranks;
  EBB_TRY_ASSIGN(ranks_, ranks.duplicate());
  EBB_TRY(libswap::agree_all(ranks, check_duplicate(ranks, *ranks_), "duplicating"));
  exchange_->connect(*ranks_);
  auto flow = Flow::start(
      *ranks_, {.count = setup_.prepared.early_chunks,
                .bring = [this](std::size_t piece) { return gradients_in_early(piece); }});
  EBB_TRY(libswap::agree_all(ranks, flow ? Result<>() : flow.error(), "starting its threads"));
  flow_ = std::move(*flow);
  return {};
}

Result<> StepRun::open_sweep(libswap::TileCache& cache) {
  const Sweep::Parts with{setup_.config.model,  setup_.plan(), setup_.chunks(), computing_.pool(),
                          computing_.kernels(), *exchange_,    steps_,          computing_.bf16()};
  EBB_TRY_ASSIGN(sweep_, Sweep::open(with, cache, setup_.prepared.memory.whole));
  return {};
}

void StepRun::choose(std::uint32_t choice) {
  if (exchange_->updates() != nullptr) exchange_->updates()->choose(choice);
}

void StepRun::forget_updates() {
  if (exchange_->updates() != nullptr) exchange_->updates()->forget();
}

Result<double> StepRun::travel(const char* what, const Run& run) {
  const TraceSpan span(setup_.config.trace, setup_.rank(), Lane::exchange, what);
  const auto begin = std::chrono::steady_clock::now();
  EBB_TRY_ASSIGN(const std::uint64_t sent, run());
  const double took = libswap::seconds_since(begin);
  const MutexLock lock(mutex_);
  counted_.sent_bytes += sent;
  counted_.exchange_s += took;
  return took;
}

Result<> StepRun::travel_in_step(const char* what, const Run& run) {
  const double swept = flow_->sweeping_s();
  EBB_TRY_ASSIGN(const double took, travel(what, run));
  const double hidden = flow_->sweeping_s() - swept;
  const MutexLock lock(mutex_);
  counted_.exposed_exchange_s += std::max(0.0, took - hidden);
  return {};
}

Result<> StepRun::bring_in(std::size_t chunk) {
  if (setup_.bound_masters())
    EBB_TRY(weights_in(chunk, ChunkExchange::As::bound, exchange_->touched()));
  EBB_TRY(setup_.partial() ? sums_in_again(chunk) : gradients_in(chunk));
  return results_in(chunk);
}

Result<> StepRun::weights_in(std::size_t chunk, ChunkExchange::As as, const Travels& travels) {
  const char* const what = as == ChunkExchange::As::bound ? "bound masters in" : "weights in";
  return travel_in_step(what, [&] { return exchange_->weights_in(chunk, as, travels); });
}

Result<> StepRun::gradients_in(std::size_t chunk) {
  const bool came = chunk + flow_->came_early() >= setup_.chunks().count();
  using Of = ChunkExchange::Of;
  return travel_in_step(
      "gradients in", [&] { return exchange_->gradients_in(chunk, came ? Of::others : Of::all); });
}

// Those that look_at_sums() made are there where they have a place: of what are no matrices, too.
Result<> StepRun::sums_in_again(std::size_t chunk) {
  if (setup_.lasting(chunk)) return {};
  return travel_in_step("gradients in again", [&] {
    return exchange_->gradients_in(chunk, ChunkExchange::Of::matrices);
  });
}

Result<> StepRun::gradients_in_early(std::size_t piece) {
  const std::size_t chunk = setup_.chunks().count() - 1 - piece;
  const auto matrices = matrices_in(setup_.plan(), setup_.chunks().gradients(chunk));
  EBB_TRY_ASSIGN(const auto said, gradients_.absent().gradients_said(*ranks_, matrices));
  EBB_TRY(travel("gradients in early", [&] {
    return exchange_->bring_gradients(chunk,
                                      [&](std::uint32_t param) { return said.contains(param); });
  }));
  return {};
}

// However long some rank's takes. What is not finite on one of them comes to none.
Result<> StepRun::results_in(std::size_t chunk) {
  if (!exchange_->has_results(chunk)) return {};
  Updates* const updates = exchange_->updates();
  EBB_TRY(ranks_->together("orthogonalizing", [updates] { return updates->made(); }));
  return travel_in_step("scattering results", [&] { return exchange_->scatter_results(chunk); });
}

Result<> StepRun::gather_updates(std::size_t chunk) {
  if (!exchange_->has_updates(chunk)) return {};
  EBB_TRY(travel_in_step("gathering updates", [&] { return exchange_->gather_updates(chunk); }));
  exchange_->updates()->orthogonalize(chunk, gradients_.absent(), computing_.bf16());
  return {};
}

Result<> StepRun::weights_out(std::size_t chunk, const Travels& travels) {
  return travel_in_step("weights out", [&] { return exchange_->weights_out(chunk, travels); });
}

bool StepRun::turn_to(std::size_t chunk) {
  if (!flow_->may_sweep(chunk)) return false;
  exchange_->begin_weights(chunk);
  return true;
}

Result<> StepRun::sweep_chunk(std::size_t chunk) {
  const auto begin = std::chrono::steady_clock::now();
  const auto stalls = [&] {
    const libswap::PagerStats pager = sweep_->cache().stats();
    return pager.stall_read_s + pager.stall_cut_s;
  };
  const double stalled = stalls();
  const Result<> swept = sweep_->update(chunk);
  const double computed = libswap::seconds_since(begin) - (stalls() - stalled);
  const MutexLock lock(mutex_);
  counted_.compute_s += computed;
  return swept;
}

// The state moves from its first chunk on: whatever fails then, this gradient is never applied
// again to what has seen it. Before, the step can be made again.
void StepRun::begin(float grad_scale) {
  const auto update = [this, grad_scale, begun = false]() mutable -> Result<> {
    for (std::size_t chunk = flow_->next_to_sweep(); turn_to(chunk); ++chunk) {
      if (!std::exchange(begun, true))
        sweep_->begin_update(steps_.now() + 1, grad_scale, gradients_.absent());
      const Result<> swept = sweep_chunk(chunk);
      if (sweep_->non_finite()) flow_->invalidate();
      EBB_TRY(swept);
      flow_->swept();
    }
    return {};
  };
  flow_->begin(
      {.chunks = setup_.chunks().count(),
       .in = [this](std::size_t chunk) { return bring_in(chunk); },
       .out = [this](std::size_t chunk) { return weights_out(chunk, exchange_->touched()); },
       .between = [this](std::size_t chunk) { return gather_updates(chunk); },
       .sweep = update,
       .doing = "sweeping its state",
       .leaves_early = EarlyPieces::Left::none});
}

void StepRun::go_on() {
  sweep_->go_on();
  flow_->go_on();
}

EngineStats StepRun::take_counted() {
  const MutexLock lock(mutex_);
  return std::exchange(counted_, {});
}

// One chunk is looked at while the next comes. Behind it no sum is to come early any more.
Result<Look> StepRun::look_at_sums() {
  Look all;
  const auto look = [&]() -> Result<> {
    for (std::size_t chunk = flow_->next_to_sweep(); flow_->may_sweep(chunk); ++chunk) {
      add(all, look_at(exchange_->sums(chunk), computing_.host(), computing_.pool()));
      flow_->swept();
    }
    return {};
  };
  flow_->begin({.chunks = setup_.chunks().count(),
                .in = [this](std::size_t chunk) { return gradients_in(chunk); },
                .out = [](std::size_t) { return Result<>(); },
                .sweep = look,
                .doing = "looking at its gradients",
                .leaves_early = EarlyPieces::Left::all});
  const Flow::Ended ended = flow_->wait();
  if (ended.why) return *ended.why;
  return all;
}

Flow::Ended StepRun::walk(const Walk& through, const Begin& begin, Flow::Work work) {
  const std::size_t chunks = work.chunks;
  const auto nothing = [](std::size_t) { return Result<>(); };
  if (!work.in) work.in = nothing;
  if (!work.out) work.out = nothing;
  const auto turn_to = [&](std::size_t chunk) {
    if (!flow_->may_sweep(chunk)) return false;
    if (begin) begin(chunk);
    return true;
  };
  sweep_->go_on();  // what a disk refused before, this one or that before it, is tried again
  work.sweep = [&, chunks]() -> Result<> {
    bool goes_on = turn_to(0);
    if (!goes_on) return {};
    const Result<> all = through([&](std::size_t chunk, const Result<>& done) -> Result<> {
      EBB_TRY(done);
      flow_->swept();
      goes_on = chunk + 1 == chunks || turn_to(chunk + 1);
      return goes_on ? Result<>() : Error{Code::peer, "the ranks have come to rest"};
    });
    return goes_on ? all : Result<>();
  };
  flow_->begin(std::move(work));
  return flow_->wait();
}

Flow::Ended StepRun::keep_bound(const Travels& of) {
  const auto in = [&](std::size_t chunk) {
    return weights_in(chunk, ChunkExchange::As::bound, of);
  };
  return walk([&](const Sweep::Between& next) { return sweep_->keep(of, steps_.now(), next); }, {},
              {.chunks = setup_.chunks().count(), .in = in, .doing = "keeping its bound masters"});
}

// Low halves become 0 where they lie.
Flow::Ended StepRun::take_weights(const Travels& of) {
  const auto in = [&](std::size_t chunk) {
    return setup_.in_halves() ? Result<>() : weights_in(chunk, ChunkExchange::As::weights, of);
  };
  return walk([&](const Sweep::Between& next) { return sweep_->take(of, steps_.now(), next); }, {},
              {.chunks = setup_.chunks().count(), .in = in, .doing = "taking its weights"});
}

Flow::Ended StepRun::hand_out_weights() {
  const auto kept = [this](std::uint32_t param) { return setup_.plan().out(param) != Out::update; };
  return walk([this](const Sweep::Between& out) { return sweep_->look(out); },
              [this](std::size_t chunk) { exchange_->begin_weights(chunk); },
              {.chunks = setup_.chunks().count(),
               .out = [this, kept](std::size_t chunk) { return weights_out(chunk, kept); },
               .doing = "reading its weights"});
}

Flow::Ended StepRun::read_states(const NamedStates& states) {
  const auto out = [&](std::size_t portion) {
    return travel_in_step("state out", [&] { return exchange_->states_out(states, portion); });
  };
  return walk([&](const Sweep::Between& next) { return sweep_->read(states, next); },
              [&](std::size_t portion) { exchange_->begin_states(states, portion); },
              {.chunks = states.portions(), .out = out, .doing = "reading its state"});
}

Flow::Ended StepRun::write_states(const NamedStates& states) {
  const auto in = [&](std::size_t portion) {
    return travel_in_step("state in", [&] { return exchange_->states_in(states, portion); });
  };
  return walk([&](const Sweep::Between& next) { return sweep_->write(states, steps_.now(), next); },
              {}, {.chunks = states.portions(), .in = in, .doing = "writing its state"});
}

}  // namespace ebb::libmuon
