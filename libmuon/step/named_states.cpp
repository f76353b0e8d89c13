#include "ebb/libmuon/step/named_states.h"

#include <algorithm>
#include <utility>

namespace ebb::libmuon {

namespace {

// What is staged of a matrix lies at one owner: a stack may have several.
void add_runs(const StatePlan& plan, std::uint32_t param, std::vector<Transit>& into) {
  for (std::uint64_t first = 0; first < plan.elems(param);) {
    const FlatRange run = plan.run_of(param, first).range;
    into.push_back({param, run});
    first = run.first + run.count;
  }
}

// What travels of each parameter: all of it.
struct Ranges {
  std::vector<Transit> matrices, others;
};

Ranges ranges_of(const StatePlan& plan, std::span<const StateBuffer> buffers) {
  Ranges ranges;
  for (const auto& [param, pieces] : buffers)
    if (plan.on_shards(param))
      (plan.muon(param) ? ranges.matrices : ranges.others)
          .push_back({param, {0, plan.elems(param)}});
    else
      add_runs(plan, param, ranges.matrices);
  return ranges;
}

}  // namespace

std::uint64_t NamedStates::staged_bytes(const StatePlan& plan,
                                        std::span<const StateBuffer> buffers) {
  const Ranges ranges = ranges_of(plan, buffers);
  std::uint64_t elems = 0;
  for (const auto* transits : {&ranges.matrices, &ranges.others})
    elems += staged_elems(plan, plan.weights(), *transits);
  return libmuon::staged_bytes(DType::f32, elems);
}

NamedStates::NamedStates(const StatePlan& plan, const Exchange& out, std::span<const One> states,
                         std::uint64_t most_bytes)
    : plan_(plan) {
  for (const auto& [state, buffers] : states) {
    Kept& kept = states_.emplace_back(state, std::vector<libswap::Buffer>(plan.params()));
    for (const auto& [param, pieces] : buffers) kept.buffers[param] = pieces;
  }
  const Ranges ranges = ranges_of(plan, states.front().buffers);
  // Rounds are cut by what weights are handed out as, at least two bytes an element; these have
  // four.
  for (const auto* const transits : {&ranges.matrices, &ranges.others})
    for (auto& round : out.rounds(*transits, most_bytes / 2)) portions_.push_back(std::move(round));
  for (std::size_t number = 0; number < portions_.size(); ++number)
    for (const Transit& transit : portions_[number]) pieces_.push_back({transit, number});
  std::ranges::sort(pieces_, {}, [](const Piece& piece) {
    return std::pair(piece.transit.param, piece.transit.range.first);
  });
}

template <typename Take>
void NamedStates::for_pieces(const Transit& range, const Take& take) const {
  const auto end_of = [](const Piece& piece) {
    return std::pair(piece.transit.param, piece.transit.range.first + piece.transit.range.count);
  };
  auto piece =
      std::ranges::upper_bound(pieces_, std::pair(range.param, range.range.first), {}, end_of);
  for (; piece != pieces_.end() && piece->transit.param == range.param; ++piece) {
    const FlatRange common = formats::overlap(piece->transit.range, range.range);
    if (common.count == 0) return;
    take(piece->portion, common);
  }
}

std::vector<std::size_t> NamedStates::portions_of(const Transit& range) const {
  std::vector<std::size_t> all;
  for_pieces(range, [&](std::size_t portion, FlatRange) {
    if (all.empty() || all.back() != portion) all.push_back(portion);
  });
  return all;
}

std::vector<FlatRange> NamedStates::parts(std::size_t portion, const Transit& range) const {
  std::vector<FlatRange> all;
  for_pieces(range, [&](std::size_t of, FlatRange common) {
    if (of == portion) all.push_back(common);
  });
  return all;
}

libswap::Buffer NamedStates::of(std::size_t i, const Transit& transit) const {
  const auto [param, range] = transit;
  return states_[i].buffers[param].sub(plan_.weights().place(param, plan_.rank(), range.first),
                                       range.count);
}

}  // namespace ebb::libmuon
