// Covering arrays: few rows, one value a factor, in which every pair (or every triple) of values of
// different factors occurs. What a test runs where all combinations would be millions.
#pragma once

#include <cstdint>
#include <vector>

namespace ebb::test {

using Row = std::vector<std::uint32_t>;  // by factor: which of its values

// A value of a factor.
struct Choice {
  std::uint32_t factor = 0, value = 0;
  auto operator<=>(const Choice&) const = default;
};

// Two values that never occur in one row.
struct Never {
  Choice one, other;
};

struct Factors {
  std::vector<std::uint32_t> sizes;  // how many values each has
  std::vector<Never> never = {};
};

// Of all sets of `strength` values of different factors without a `never` in them, each occurs in
// some row. The same rows for the same seed, on every machine. REQUIRES: every such set can be
// completed to a row.
std::vector<Row> covering_array(const Factors& factors, std::size_t strength, std::uint64_t seed);

// Those sets, in order.
std::vector<std::vector<Choice>> sets_of(const Factors& factors, std::size_t strength);

}  // namespace ebb::test
