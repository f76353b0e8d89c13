// Gradients that are handed in as parts of a sum over ranks: they are added up for the norm, and
// for the update once more, unless they are kept.
#include "ebb/libmuon/step/engine_impl.h"
#include "ebb/libmuon/step/norm.h"

namespace ebb::libmuon {

Result<> Engine::Impl::sum_parts(std::size_t chunk) {
  staging->begin(Staging::Kind::gradients, chunk);
  const auto part = [&](const Transit& transit) { return gradients->of(transit); };
  const auto sum = [&](const Transit& transit) { return own_gradient(transit, chunk); };
  const auto bring = [&](const Reduction& reduction, std::span<const Transit> planned) {
    for (const Transit& transit : planned)
      if (gradients->absent().has_gradient(transit.param)) gradients->wait_for(transit.param);
    return reduction.run(*wire, computing->adding(), part_room.buffer(), planned, {part, sum},
                         with_gradients());
  };
  return travel_in_step("parts of gradients in", [&]() -> Result<std::uint64_t> {
    std::uint64_t adam = 0;
    if (chunk == 0) {
      EBB_TRY_ASSIGN(adam, bring(reductions->to_shards, routes.adam));
    }
    EBB_TRY_ASSIGN(const std::uint64_t matrices,
                   bring(reductions->to_owners, parts.chunks.gradients(chunk)));
    return adam + matrices;
  });
}

// Each element lies at one rank.
std::vector<LookRange> Engine::Impl::sums_of(std::size_t chunk) {
  std::vector<LookRange> ranges;
  const auto add_all = [&](std::span<const Transit> planned) {
    for (const Transit& transit : planned) {
      if (!gradients->absent().has_gradient(transit.param)) continue;
      const double limit =
          std::visit([](const auto& spec) { return largest_gradient(spec); },
                     config.model.groups[config.model.params[transit.param].group]);
      for (const FlatRange own : staged_parts(parts.plan, parts.plan.gradients(), transit))
        ranges.push_back({own_gradient({transit.param, own}, chunk), limit, true});
    }
  };
  if (chunk == 0) add_all(routes.adam);
  add_all(parts.chunks.gradients(chunk));
  return ranges;
}

// By the chunks of a step: one is looked at while the next comes.
Result<Look> Engine::Impl::look_at_sums() {
  Look all;
  const auto look = [&]() -> Result<> {
    for (std::size_t chunk = flow->next_to_sweep(); flow->may_sweep(chunk); ++chunk) {
      add(all, look_at(sums_of(chunk), computing->host(), computing->pool()));
      flow->swept();
    }
    return {};
  };
  flow->begin({.chunks = parts.chunks.count(),
               .in = [this](std::size_t chunk) { return sum_parts(chunk); },
               .out = [](std::size_t) { return Result<>(); },
               .sweep = look,
               .doing = "looking at its gradients"});
  const Flow::Ended ended = flow->wait();
  take_over_beside();
  if (ended.why) return *ended.why;
  return all;
}

}  // namespace ebb::libmuon
