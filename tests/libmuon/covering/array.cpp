#include "tests/libmuon/covering/array.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <tuple>
#include <utility>

#include "ebb/formats/core/check.h"
#include "tests/durability/draws.h"

namespace ebb::test {
namespace {

using Set = std::vector<Choice>;  // ascending

// All choices by one number each, and which two of them are never in one row.
class Choices {
 public:
  explicit Choices(const Factors& factors) {
    for (const std::uint32_t size : factors.sizes) {
      first_.push_back(count_);
      count_ += size;
    }
    apart_.resize(count_ * count_);
    for (const Never& never : factors.never) {
      apart_[number(never.one) * count_ + number(never.other)] = true;
      apart_[number(never.other) * count_ + number(never.one)] = true;
    }
  }
  std::size_t count() const { return count_; }
  std::size_t number(Choice choice) const { return first_[choice.factor] + choice.value; }
  bool together(const Set& chosen, Choice next) const {
    return std::ranges::none_of(
        chosen, [&](Choice one) { return apart_[number(one) * count_ + number(next)]; });
  }

 private:
  std::vector<std::size_t> first_;  // by factor
  std::size_t count_ = 0;
  std::vector<bool> apart_;
};

void add_sets(const Factors& factors, const Choices& choices, std::size_t strength,
              std::uint32_t factor, Set& chosen, std::vector<Set>& all) {
  if (chosen.size() == strength) {
    all.push_back(chosen);
    return;
  }
  for (; factor < factors.sizes.size(); ++factor)
    for (std::uint32_t value = 0; value < factors.sizes[factor]; ++value) {
      const Choice next{factor, value};
      if (!choices.together(chosen, next)) continue;
      chosen.push_back(next);
      add_sets(factors, choices, strength, factor + 1, chosen, all);
      chosen.pop_back();
    }
}

// One row after the other: each begins with a set that no row has yet, and takes for each other
// factor the value that brings the most new sets. The best of several such rows.
class Greedy {
 public:
  Greedy(const Factors& factors, std::size_t strength, std::uint64_t seed)
      : factors_(factors),
        choices_(factors),
        strength_(strength),
        all_(sets_of(factors, strength)),
        draws_(seed) {
    std::size_t places = 1;
    for (std::size_t i = 0; i < strength; ++i) places *= choices_.count();
    open_.resize(places);
    for (const Set& set : all_) open_[place_of(set)] = true;
    left_ = all_.size();
  }

  std::vector<Row> run() {
    constexpr int kTries = 10;
    std::vector<Row> rows;
    while (left_ > 0) {
      Set best;
      std::size_t most = 0;
      for (int tried = 0; tried < kTries; ++tried) {
        auto [set, closes] = draw_row();
        if (closes > most) std::tie(best, most) = std::pair(std::move(set), closes);
      }
      EBB_CHECK(most > 0);
      for_sets(best, 0, 0, 0, [this](std::size_t place) { close(place); });
      Row& row = rows.emplace_back(factors_.sizes.size());
      for (const Choice choice : best) row[choice.factor] = choice.value;
    }
    return rows;
  }

 private:
  // And how many new sets are in it.
  std::pair<Set, std::size_t> draw_row() {
    Set row = draw_open();
    std::vector<std::uint32_t> order(factors_.sizes.size());
    std::iota(order.begin(), order.end(), 0);
    for (std::size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[draws_.below(i)]);
    for (const std::uint32_t factor : order)
      if (std::ranges::find(row, factor, &Choice::factor) == row.end()) {
        row.push_back(best_value(row, factor));
        std::ranges::sort(row);
      }
    std::size_t closes = 0;
    for_sets(row, 0, 0, 0, [&](std::size_t place) { closes += open_[place] ? 1 : 0; });
    return {row, closes};
  }

  const Set& draw_open() {
    std::size_t number = draws_.below(all_.size());
    while (!open_[place_of(all_[number])]) number = (number + 1) % all_.size();
    return all_[number];
  }

  Choice best_value(const Set& row, std::uint32_t factor) {
    std::optional<Choice> best;
    std::size_t most = 0;
    const std::uint64_t begin = draws_.next();  // among equals a drawn one
    for (std::uint32_t i = 0; i < factors_.sizes[factor]; ++i) {
      const Choice next{factor, static_cast<std::uint32_t>((begin + i) % factors_.sizes[factor])};
      if (!choices_.together(row, next)) continue;
      std::size_t closes = 0;
      count_with(row, next, 0, {}, closes);
      if (!best || closes > most) std::tie(best, most) = std::pair(next, closes);
    }
    return best.value();
  }

  // New sets of `next` and others of the row.
  void count_with(const Set& row, Choice next, std::size_t from, Set chosen,
                  std::size_t& closes) const {
    if (chosen.size() + 1 == strength_) {
      chosen.push_back(next);
      std::ranges::sort(chosen);
      closes += open_[place_of(chosen)] ? 1 : 0;
      return;
    }
    for (std::size_t i = from; i < row.size(); ++i) {
      Set more = chosen;
      more.push_back(row[i]);
      count_with(row, next, i + 1, std::move(more), closes);
    }
  }

  std::size_t place_of(const Set& set) const {
    std::size_t place = 0;
    for (const Choice choice : set) place = place * choices_.count() + choices_.number(choice);
    return place;
  }
  template <typename Take>
  void for_sets(const Set& row, std::size_t from, std::size_t size, std::size_t place,
                const Take& take) const {
    if (size == strength_) return take(place);
    for (std::size_t i = from; i < row.size(); ++i)
      for_sets(row, i + 1, size + 1, place * choices_.count() + choices_.number(row[i]), take);
  }
  void close(std::size_t place) {
    if (open_[place]) --left_;
    open_[place] = false;
  }

  const Factors& factors_;
  const Choices choices_;
  const std::size_t strength_;
  const std::vector<Set> all_;
  Draws draws_;
  std::vector<bool> open_;  // sets that no row has yet, by place_of
  std::size_t left_ = 0;    // how many these are
};

}  // namespace

std::vector<Set> sets_of(const Factors& factors, std::size_t strength) {
  std::vector<Set> all;
  Set chosen;
  add_sets(factors, Choices(factors), strength, 0, chosen, all);
  return all;
}

std::vector<Row> covering_array(const Factors& factors, std::size_t strength, std::uint64_t seed) {
  return Greedy(factors, strength, seed).run();
}

}  // namespace ebb::test
