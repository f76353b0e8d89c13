#include "ebb/libmuon/step/chunk_exchange.h"

#include <utility>

#include "ebb/libmuon/kernels/kernels.h"
#include "ebb/libmuon/step/side.h"

namespace ebb::libmuon {

using libswap::Buffer;

namespace {

Result<std::unique_ptr<Updates>> make_updates(const Setup& setup, const Computing& computing) {
  if (setup.plan().placement() == Placement::owner) return std::unique_ptr<Updates>();
  EBB_TRY_ASSIGN(auto own, computing.more_kernels());
  const EngineConfig& config = setup.config;
  return Updates::make({config.model, setup.plan(), setup.chunks(), config.accelerator},
                       computing.pool(), std::move(own));
}

}  // namespace

ChunkExchange::ChunkExchange(const Setup& setup, const Computing& computing,
                             const Gradients& gradients, Weights& weights, Rooms rooms)
    : setup_(setup),
      computing_(computing),
      bounce_(std::move(rooms.bounce)),
      gradients_(gradients),
      weights_(weights),
      staging_(std::move(rooms.staging)),
      updates_(std::move(rooms.updates)),
      part_room_(std::move(rooms.parts)) {}

Result<std::unique_ptr<ChunkExchange>> ChunkExchange::make(const Setup& setup,
                                                           const Computing& computing,
                                                           const Gradients& gradients,
                                                           Weights& weights) {
  const EngineConfig& config = setup.config;
  const Memory& memory = setup.prepared.memory;
  EBB_TRY_ASSIGN(auto updates, make_updates(setup, computing));
  const std::vector<Transit> lasting = adam_ranges(setup.plan());
  EBB_TRY_ASSIGN(Staging staging, Staging::make({setup.plan(), setup.chunks(), lasting,
                                                 setup.prepared.lasting_chunks},
                                                device_of(config, memory.wire)));
  libswap::Device* const computes =
      config.accelerator != nullptr ? &config.accelerator->device() : nullptr;
  EBB_TRY_ASSIGN(auto parts, libswap::allocate_pinned(computes, memory.parts));
  EBB_TRY_ASSIGN(auto bounce, libswap::allocate_pinned(computes, memory.bounce));
  Rooms rooms{std::move(staging), std::move(bounce), std::move(parts), std::move(updates)};
  return std::unique_ptr<ChunkExchange>(
      new ChunkExchange(setup, computing, gradients, weights, std::move(rooms)));
}

void ChunkExchange::connect(Communicator& ranks) { wire_.emplace(ranks, bounce_); }

Travels ChunkExchange::touched() const {
  return [this](std::uint32_t param) { return !gradients_.absent().untouched(param); };
}

Buffer ChunkExchange::gradient(std::size_t chunk, const Transit& transit) {
  const StatePlan& plan = setup_.plan();
  const std::uint32_t param = transit.param;
  if (!gradients_.absent().has_gradient(param)) return {};
  if (plan.in_place(param, transit.range.first, plan.gradients())) return gradients_.of(transit);
  return staging_.at(Staging::Kind::gradients, chunk, transit);
}

Buffer ChunkExchange::weight(std::size_t chunk, const Transit& transit) {
  const StatePlan& plan = setup_.plan();
  if (plan.in_place(transit.param, transit.range.first, plan.weights()))
    return weights_.of(transit);
  return staging_.at(Staging::Kind::weights, chunk, transit);
}

Buffer ChunkExchange::bound(std::size_t chunk, const Transit& transit) {
  const StatePlan& plan = setup_.plan();
  if (plan.in_place(transit.param, transit.range.first, plan.weights()))
    return weights_.of(transit);
  return staging_.at(Staging::Kind::bound, chunk, transit);
}

void ChunkExchange::wait_for_gradients(std::size_t chunk, const Travels& travels) const {
  for (const Transit& transit : setup_.chunks().gradients(chunk))
    if (travels(transit.param)) gradients_.wait_for(transit.param);
}

ChunkExchange::Sent ChunkExchange::bring_gradients(std::size_t chunk, const Travels& travels) {
  const StatePlan& plan = setup_.plan();
  const auto handed_in = [&](const Transit& transit) { return gradients_.of(transit); };
  // Nothing where the trainer's own buffers hold it.
  const auto gathered = [&](const Transit& transit) {
    return plan.in_place(transit.param, transit.range.first, plan.gradients())
               ? Buffer()
               : staging_.at(Staging::Kind::gradients, chunk, transit);
  };
  wait_for_gradients(chunk, travels);
  const Edges& edges = setup_.edges;
  if (!edges.sums) return edges.gradients.run(*wire_, chunk, {handed_in, gathered}, travels);
  return edges.sums->run(*wire_, computing_.adding(), part_room_.buffer(),
                         setup_.chunks().gradients(chunk), {handed_in, gathered}, travels);
}

ChunkExchange::Sent ChunkExchange::gradients_in(std::size_t chunk, Of of) {
  staging_.begin(Staging::Kind::gradients, chunk);
  return bring_gradients(chunk, [&](std::uint32_t param) {
    return gradients_.absent().has_gradient(param) &&
           (of == Of::all || (of == Of::matrices) == setup_.plan().muon(param));
  });
}

std::vector<LookRange> ChunkExchange::sums(std::size_t chunk) {
  const ModelSpec& model = setup_.config.model;
  const StatePlan& plan = setup_.plan();
  std::vector<LookRange> ranges;
  for (const Transit& transit : setup_.chunks().gradients(chunk)) {
    if (!gradients_.absent().has_gradient(transit.param)) continue;
    const double limit = std::visit([](const auto& spec) { return largest_gradient(spec); },
                                    model.groups[model.params[transit.param].group]);
    for (const FlatRange own : staged_parts(plan, plan.gradients(), transit))
      ranges.push_back({gradient(chunk, {transit.param, own}), limit, true});
  }
  return ranges;
}

ChunkExchange::Sent ChunkExchange::weights_in(std::size_t chunk, As as, const Travels& travels) {
  const StatePlan& plan = setup_.plan();
  const auto kind = as == As::bound ? Staging::Kind::bound : Staging::Kind::weights;
  staging_.begin(kind, chunk);
  const auto bound_here = [this](const Transit& transit) { return weights_.of(transit); };
  const auto gathered = [&](const Transit& transit) {
    return plan.in_place(transit.param, transit.range.first, plan.weights())
               ? Buffer()
               : staging_.at(kind, chunk, transit);
  };
  return setup_.edges.bound.run(*wire_, chunk, {bound_here, gathered}, travels);
}

ChunkExchange::Sent ChunkExchange::gather_updates(std::size_t chunk) {
  return setup_.edges.updates.run(
      *wire_, chunk,
      {[&](const Transit& part) { return updates_->part(Updates::Kind::update, chunk, part); },
       [&](const Transit& whole) { return updates_->whole(Updates::Kind::update, chunk, whole); }},
      touched());
}

ChunkExchange::Sent ChunkExchange::scatter_results(std::size_t chunk) {
  return setup_.edges.results.run(
      *wire_, chunk,
      {[&](const Transit& whole) { return updates_->whole(Updates::Kind::result, chunk, whole); },
       [&](const Transit& part) { return updates_->part(Updates::Kind::result, chunk, part); }},
      touched());
}

ChunkExchange::Sent ChunkExchange::weights_out(std::size_t chunk, const Travels& travels) {
  const auto own = [&](const Transit& transit) { return weight(chunk, transit); };
  const auto there = [this](const Transit& transit) { return weights_.of(transit); };
  EBB_TRY_ASSIGN(const std::uint64_t sent,
                 setup_.edges.weights.run(*wire_, chunk, {own, there}, travels));
  weights_.handed_out(chunk, travels);
  return sent;
}

Buffer ChunkExchange::state(const NamedStates& states, std::size_t i, std::size_t portion,
                            const Transit& transit) {
  const StatePlan& plan = setup_.plan();
  if (plan.in_place(transit.param, transit.range.first, plan.weights()))
    return states.of(i, transit);
  return staging_.in_portion(portion, i, transit);
}

ChunkExchange::Sent ChunkExchange::states_out(const NamedStates& states, std::size_t portion) {
  std::uint64_t sent = 0;
  for (std::size_t i = 0; i < states.count(); ++i) {
    const auto own = [&](const Transit& transit) { return state(states, i, portion, transit); };
    const auto there = [&](const Transit& transit) { return states.of(i, transit); };
    EBB_TRY_ASSIGN(const std::uint64_t some, setup_.edges.weights.exchange().run(
                                                 *wire_, states.portion(portion), {own, there}));
    sent += some;
  }
  return sent;
}

ChunkExchange::Sent ChunkExchange::states_in(const NamedStates& states, std::size_t portion) {
  begin_states(states, portion);
  std::uint64_t sent = 0;
  for (std::size_t i = 0; i < states.count(); ++i) {
    const auto own = [&](const Transit& transit) { return state(states, i, portion, transit); };
    const auto there = [&](const Transit& transit) { return states.of(i, transit); };
    EBB_TRY_ASSIGN(const std::uint64_t some, setup_.edges.bound.exchange().run(
                                                 *wire_, states.portion(portion), {there, own}));
    sent += some;
  }
  return sent;
}

}  // namespace ebb::libmuon
