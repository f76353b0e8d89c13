// Masters take what the trainer wrote to its weights.
#include <algorithm>
#include <cmath>

#include "ebb/libmuon/step/engine_impl.h"
#include "ebb/libswap/store/alike.h"

namespace ebb::libmuon {

Result<> Engine::Impl::can_take(std::span<const std::uint32_t> params) {
  EBB_TRY(not_stopped_in_a_step());
  EBB_TRY(fate.check(Fate::writing));
  EBB_TRY(fate.check(Fate::undelivered));
  EBB_TRY(home.usable());
  const ModelSpec& model = setup.config.model;
  for (const std::uint32_t param : params) {
    if (param >= model.params.size())
      return Error{Code::usage, compose("there is no parameter {}", param)};
    const std::string& name = model.params[param].name;
    if (out_of(model, param) == Out::update)
      return Error{Code::usage,
                   compose("parameter {} hands out updates: its masters are the trainer's", name)};
    if (!setup.plan().here(param)) continue;
    if (!weights.bound(param))
      return Error{Code::usage, compose("parameter {} has no weights bound on rank {}", name,
                                        index_of(setup.rank()))};
    EBB_TRY(weights.finite(param, *computing));
  }
  return {};
}

Result<std::vector<bool>> Engine::Impl::agree_on_taken(std::span<const std::uint32_t> params) {
  Communicator& ranks = setup.ranks;
  std::vector<std::int64_t> named(setup.plan().params(), 0);
  for (const std::uint32_t param : params) named[param] = 1;
  std::vector<std::int64_t> all = named;
  EBB_TRY(ranks.sum(all));
  for (std::size_t param = 0; param < all.size(); ++param) {
    if (all[param] == 0 || all[param] == ranks.world()) continue;
    const libswap::Setting setting{
        "take_weights() of " + setup.config.model.params[param].name,
        named[param] != 0 ? std::string("asked for") : std::string("not asked for")};
    return libswap::same_everywhere(ranks, {&setting, 1}).error();
  }
  // Bound ones are the masters already.
  std::vector<std::int64_t> written(all.size(), setup.bound_masters() ? 0 : 1);
  if (setup.in_halves()) {
    const auto changed = weights.changed(computing->pool());
    EBB_TRY(agree_all(changed ? Result<>() : changed.error(), "taking its weights"));
    for (const std::uint32_t param : *changed) written[param] = 1;
    EBB_TRY(ranks.sum(written));
  }
  std::vector<bool> taken(all.size());
  for (std::size_t param = 0; param < all.size(); ++param)
    taken[param] = all[param] != 0 && written[param] != 0;
  for (const std::uint32_t param : weights.half_taken()) taken[param] = true;
  return taken;
}

// A generation that is being written is of before.
Result<> Engine::Impl::take(const std::vector<bool>& taken) {
  if (std::ranges::find(taken, true) == taken.end()) return {};
  EBB_TRY(home.settle(libswap::Snapshots::Mode::wait));
  weights.set_kept(std::nullopt);
  const auto of = [&](std::uint32_t param) { return taken[param]; };
  if (Result<> ended = ended_well(run->take_weights(of)); !ended) {
    std::set<std::uint32_t> half;
    for (std::uint32_t param = 0; param < taken.size(); ++param)
      if (taken[param]) half.insert(param);
    weights.set_half_taken(std::move(half));
    fate.set(Fate::taking,
             {Code::state, "masters have taken a part of their weights: " + ended.error().message,
              "take_weights() goes on with them, abandon_step() goes back to the last committed "
              "generation"});
    return ended;
  }
  weights.taken(of);
  weights.set_half_taken({});
  fate.clear(Fate::taking);
  return {};
}

Result<> Engine::take_weights(std::span<const std::uint32_t> params) {
  EBB_TRY_ASSIGN(const Entry::Inside inside, impl_->entry.alone("take_weights"));
  impl_->end_step();
  EBB_TRY(impl_->agree_all(impl_->can_take(params), "taking its weights"));
  EBB_TRY_ASSIGN(const std::vector<bool> taken, impl_->agree_on_taken(params));
  return impl_->take(taken);
}

}  // namespace ebb::libmuon
