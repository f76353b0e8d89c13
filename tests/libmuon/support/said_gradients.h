// What a trainer says of each parameter in a step, for tests of those that have no gradient in it.
#pragma once

#include <algorithm>
#include <array>
#include <functional>
#include <optional>

#include "tests/libmuon/support/elements.h"
#include "tests/libmuon/support/world.h"

namespace ebb::test {

// Of a parameter in a step: noise of a number, zeros, or that there is none.
struct Said {
  std::optional<std::uint64_t> noise;
  std::optional<libmuon::WithoutGradient> none;
};
using Script = std::function<Said(std::uint32_t param, std::uint64_t step)>;

// Of nuisance_model(): an embedding, a norm, matrices that share an item or fill tiles of their
// own.
inline constexpr std::array<std::uint32_t, 5> kSome = {0, 1, 3, 5, 8};
inline bool in_some(std::uint32_t param) { return std::ranges::find(kSome, param) != kSome.end(); }

inline Said always(std::uint32_t, std::uint64_t step) { return {.noise = step, .none = {}}; }

inline Result<> hand_in(RankEngine& rank, std::uint64_t step, const Script& script) {
  const libmuon::StatePlan& plan = rank.engine().state_plan();
  for (std::uint32_t param = 0; param < plan.params(); ++param) {
    if (!plan.here(param)) continue;
    const Said said = script(param, step);
    if (said.none) {
      EBB_TRY(rank.engine().no_gradient(param, *said.none));
      continue;
    }
    auto& gradient = rank.gradients()[param];
    gradient.clear();
    for_elements(plan.gradients(), param, plan.rank(), [&](std::uint64_t element, std::uint64_t) {
      gradient.push_back(said.noise ? noise(param, *said.noise, element) : 0.0f);
    });
    EBB_TRY(rank.engine().gradient_ready(param, gradient));
  }
  return {};
}

}  // namespace ebb::test
