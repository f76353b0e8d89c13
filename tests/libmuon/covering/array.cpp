#include "tests/libmuon/covering/array.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "tests/durability/draws.h"

namespace ebb::test {
namespace {

using Set = std::vector<Choice>;  // ascending

bool together(const Factors& factors, const Set& chosen, Choice next) {
  return std::ranges::none_of(factors.never, [&](const Never& never) {
    const auto has = [&](Choice choice) {
      return std::ranges::find(chosen, choice) != chosen.end();
    };
    return (never.one == next && has(never.other)) || (never.other == next && has(never.one));
  });
}

void add_sets(const Factors& factors, std::size_t strength, std::uint32_t factor, Set& chosen,
              std::vector<Set>& all) {
  if (chosen.size() == strength) {
    all.push_back(chosen);
    return;
  }
  for (; factor < factors.sizes.size(); ++factor)
    for (std::uint32_t value = 0; value < factors.sizes[factor]; ++value) {
      const Choice next{factor, value};
      if (!together(factors, chosen, next)) continue;
      chosen.push_back(next);
      add_sets(factors, strength, factor + 1, chosen, all);
      chosen.pop_back();
    }
}

// One row after the other: each begins with a set that no row has yet, and takes for each other
// factor the value that brings the most new sets. The best of several such rows.
class Greedy {
 public:
  Greedy(const Factors& factors, std::size_t strength, std::uint64_t seed)
      : factors_(factors), strength_(strength), draws_(seed) {
    const auto all = sets_of(factors, strength);
    open_.insert(all.begin(), all.end());
  }

  std::vector<Row> run() {
    constexpr int kTries = 10;
    std::vector<Row> rows;
    while (!open_.empty()) {
      Set best;
      std::size_t most = 0;
      for (int tried = 0; tried < kTries; ++tried) {
        Set row = draw_row();
        const auto closes = sets_in(row).size();
        if (closes > most) std::tie(best, most) = std::pair(std::move(row), closes);
      }
      for (const Set& set : sets_in(best)) open_.erase(set);
      Row& row = rows.emplace_back(factors_.sizes.size());
      for (const Choice choice : best) row[choice.factor] = choice.value;
    }
    return rows;
  }

 private:
  Set draw_row() {
    auto first = open_.begin();
    std::advance(first, static_cast<std::ptrdiff_t>(draws_.below(open_.size())));
    Set row = *first;
    std::vector<std::uint32_t> order(factors_.sizes.size());
    std::iota(order.begin(), order.end(), 0);
    for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[draws_.below(i)]);
    for (const std::uint32_t factor : order)
      if (std::ranges::find(row, factor, &Choice::factor) == row.end())
        row.push_back(best_value(row, factor));
    std::ranges::sort(row);
    return row;
  }

  Choice best_value(const Set& row, std::uint32_t factor) {
    std::optional<Choice> best;
    std::size_t most = 0;
    const std::uint64_t begin = draws_.next();  // among equals a drawn one
    for (std::uint32_t i = 0; i < factors_.sizes[factor]; ++i) {
      const Choice next{factor, static_cast<std::uint32_t>((begin + i) % factors_.sizes[factor])};
      if (!together(factors_, row, next)) continue;
      Set with = row;
      with.push_back(next);
      std::ranges::sort(with);
      const std::size_t closes = sets_in(with).size();
      if (!best || closes > most) std::tie(best, most) = std::pair(next, closes);
    }
    return best.value();
  }

  // Those of its sets that no row has yet.
  std::vector<Set> sets_in(const Set& row) const {
    std::vector<Set> found;
    Set chosen;
    add_open(row, 0, chosen, found);
    return found;
  }
  void add_open(const Set& row, std::size_t first, Set& chosen, std::vector<Set>& found) const {
    if (chosen.size() == strength_) {
      if (open_.contains(chosen)) found.push_back(chosen);
      return;
    }
    for (std::size_t i = first; i < row.size(); ++i) {
      chosen.push_back(row[i]);
      add_open(row, i + 1, chosen, found);
      chosen.pop_back();
    }
  }

  const Factors& factors_;
  const std::size_t strength_;
  Draws draws_;
  std::set<Set> open_;
};

}  // namespace

std::vector<Set> sets_of(const Factors& factors, std::size_t strength) {
  std::vector<Set> all;
  Set chosen;
  add_sets(factors, strength, 0, chosen, all);
  return all;
}

std::vector<Row> covering_array(const Factors& factors, std::size_t strength, std::uint64_t seed) {
  return Greedy(factors, strength, seed).run();
}

}  // namespace ebb::test
