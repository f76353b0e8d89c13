// Where masters are in halves the trainer's weights are the high ones: state that lies with the
// trainer. It comes back to the owners for a step, chunk by chunk, and before a cut into tiles.
#include "ebb/libmuon/step/engine_impl.h"

namespace ebb::libmuon {

using libswap::Buffer;

Buffer Engine::Impl::bound_weight(const Transit& transit) const {
  const StatePlan& plan = parts.plan;
  const auto [param, range] = transit;
  return weights[param].sub(plan.weights().place(param, plan.rank(), range.first), range.count);
}

Buffer Engine::Impl::own_high(const Transit& transit, std::size_t chunk) {
  const StatePlan& plan = parts.plan;
  if (plan.in_place(transit.param, transit.range.first, plan.weights()))
    return bound_weight(transit);
  return staging->at(Staging::Kind::highs, chunk, transit);
}

Result<> Engine::Impl::highs_in(std::size_t chunk, const Travels& travels) {
  if (!in_halves()) return {};
  const StatePlan& plan = parts.plan;
  staging->begin(Staging::Kind::highs, chunk);
  const auto bound_here = [this](const Transit& transit) { return bound_weight(transit); };
  const auto gathered = [&](const Transit& transit) {
    return plan.in_place(transit.param, transit.range.first, plan.weights())
               ? Buffer()
               : staging->at(Staging::Kind::highs, chunk, transit);
  };
  return travel_in_step("high halves in", [&]() -> Result<std::uint64_t> {
    const auto bring = [&](const Exchange& exchange, std::span<const Transit> transits) {
      return exchange.run(*wire, transits, {bound_here, gathered}, travels);
    };
    std::uint64_t adam = 0;
    if (chunk == 0) {
      EBB_TRY_ASSIGN(adam, bring(routes.highs_to_shards, routes.adam));
    }
    EBB_TRY_ASSIGN(const std::uint64_t matrices,
                   bring(routes.highs_to_owners, parts.chunks.weights(chunk)));
    return adam + matrices;
  });
}

Result<> Engine::Impl::highs_unchanged() const {
  if (!in_halves()) return {};
  if (!handed_out->all())
    return Error{Code::usage,
                 "the bound weights are the high halves of masters, and were not handed out yet",
                 "call install_weights() first"};
  const auto changed = handed_out->changed(
      computing->pool(), [this](const Transit& part) { return bound_weight(part); });
  if (!changed) return {};
  return Error{Code::state,
               compose("parameter {}: its weights on rank {} are not those that were handed out: "
                       "they are the high half of its master, which somebody else wrote to",
                       config.model.params[*changed].name, index_of(parts.plan.rank())),
               "put back what was there, or abandon_step() goes back to the last committed "
               "generation"};
}

Result<> Engine::Impl::keep_highs() {
  if (!in_halves() || highs_kept == steps.now()) return {};
  EBB_TRY(agree_all(highs_unchanged(), "reading its high halves"));
  highs_kept.reset();
  const Flow::Ended ended =
      walk([this](const Sweep::Between& next) { return sweep->keep(steps.now(), next); },
           {.in = [this](std::size_t chunk) { return highs_in(chunk, {}); },
            .out = [](std::size_t) { return Result<>(); },
            .doing = "keeping its high halves"});
  if (ended.why) {
    sweep->go_on();  // a tile that could not be written still is to be
    return *ended.why;
  }
  highs_kept = steps.now();
  return {};
}

Flow::Ended Engine::Impl::walk(const Walk& through, Flow::Work work) {
  work.chunks = parts.chunks.count();
  work.sweep = [this, &through]() -> Result<> {
    bool goes_on = turn_to(0);
    if (!goes_on) return {};
    const Result<> all = through([&](std::size_t chunk, const Result<>& done) -> Result<> {
      EBB_TRY(done);
      flow->swept();
      goes_on = chunk + 1 == parts.chunks.count() || turn_to(chunk + 1);
      return goes_on ? Result<>() : Error{Code::peer, "the ranks have come to rest"};
    });
    return goes_on ? all : Result<>();
  };
  flow->begin(std::move(work));
  Flow::Ended ended = flow->wait();
  take_over_beside();
  return ended;
}

// All weights, by the chunks of a step.
Result<> Engine::Impl::install() {
  if (in_halves()) EBB_TRY(settle_snapshot(libswap::Snapshots::Mode::poll));
  EBB_TRY(keep_highs());
  const auto kept = [this](std::uint32_t param) { return parts.plan.out(param) != Out::update; };
  const Flow::Ended ended =
      walk([this](const Sweep::Between& out) { return sweep->look(out); },
           {.in = [](std::size_t) { return Result<>(); },
            .out = [this, kept](std::size_t chunk) { return weights_out(chunk, kept); },
            .doing = "reading its weights"});
  if (ended.why) return *ended.why;
  if (ended.not_out) return *ended.not_out;
  weights_owed.reset();
  return {};
}

}  // namespace ebb::libmuon
