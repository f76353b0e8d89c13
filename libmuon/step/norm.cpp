#include "ebb/libmuon/step/norm.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <limits>

#include "ebb/libmuon/kernels/kernels.h"

namespace ebb::libmuon {

using formats::align_up;
using formats::div_ceil;

namespace {

// Which of several equal copies of a gradient this rank holds: together they count it once.
struct Copy {
  std::uint32_t index = 0;
  std::uint32_t count = 1;
};

Copy copy_of(const ModelLayout& gradients, std::uint32_t param, Rank rank) {
  const auto gradient = gradients.part_with(param, rank);
  if (!gradient) return {};
  const formats::Mesh& mesh = gradient->mesh();
  const auto place = mesh.place_of(rank);
  if (gradient->replicated()) return {place->copy * mesh.shard_world + place->shard, mesh.ranks()};
  return {place->copy, mesh.replicas};
}

}  // namespace

std::vector<LookRange> look_ranges(const ModelSpec& model,
                                   std::span<const libswap::Buffer> gradients,
                                   const StatePlan& plan) {
  constexpr std::uint64_t kShares = 64u << 10;  // elements: they are multiples of that
  std::vector<LookRange> ranges;
  for (std::uint32_t param = 0; param < gradients.size(); ++param) {
    const Copy copy = copy_of(plan.gradients(), param, plan.rank());
    const double limit = std::visit([](const auto& spec) { return largest_gradient(spec); },
                                    model.groups[model.params[param].group]);
    const libswap::Buffer& g = gradients[param];
    const std::uint64_t share = align_up(div_ceil(g.elems, copy.count), kShares);
    const std::uint64_t first = std::min(g.elems, copy.index * share);
    const std::uint64_t end = std::min(g.elems, first + share);
    ranges.push_back({g.sub(0, first), limit, false});
    ranges.push_back({g.sub(first, end - first), limit, true});
    ranges.push_back({g.sub(end, g.elems - end), limit, false});
  }
  std::erase_if(ranges, [](const LookRange& range) { return range.g.empty(); });
  return ranges;
}

Look look_at(std::span<const LookRange> ranges, Kernels& near, libswap::Pool& pool,
             const libswap::Buffer& room) {
  Look found;
  const libswap::Buffer here = libswap::buffer_of(std::as_writable_bytes(std::span(&found, 1)));
  const libswap::Buffer there = near.device() == nullptr ? here : room;
  const libswap::Event done = near.look(ranges, there, {});
  pool.help_until(there.data == here.data ? done : libswap::copy(there, here, done));
  return found;
}

void add(Look& all, const Look& more) {
  ExactSum sum{.limbs = all.squares}, other{.limbs = more.squares};
  other.carry();
  sum.merge(other);
  all.squares = sum.limbs;
  all.largest = std::max(all.largest, more.largest);
}

Result<StepResult> agree_on_norm(Communicator& ranks, const Look& mine, const StepArgs& args) {
  ExactSum sum{.limbs = mine.squares};
  sum.carry();
  std::array<std::int64_t, 21> numbers{};
  std::ranges::copy(sum.limbs, numbers.begin());
  numbers.back() = std::isfinite(mine.largest) ? 0 : 1;
  EBB_TRY(ranks.sum(numbers));
  StepResult result;
  if (numbers.back() != 0) {
    result.skipped = true;
    result.norm = std::numeric_limits<double>::quiet_NaN();
    return result;
  }
  std::copy_n(numbers.begin(), sum.limbs.size(), sum.limbs.begin());
  sum.carry();
  result.norm = std::sqrt(sum.value()) * args.inv_scale;
  if (args.max_norm > 0) result.clip = std::min(1.0, args.max_norm / (result.norm + 1e-6));
  const bool safe = mine.largest * args.inv_scale * result.clip <= 1;
  EBB_TRY_ASSIGN(const std::int64_t all_safe, ranks.agree(safe ? 1 : 0));
  result.skipped = all_safe == 0;
  return result;
}

}  // namespace ebb::libmuon
