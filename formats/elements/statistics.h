// What a tensor's elements are like, read once, chunk by chunk; memory: one run and its doubles.
#pragma once

#include <cstdint>
#include <optional>

#include "ebb/formats/catalog/catalog.h"

namespace ebb::formats {

// Of numbers: real and imaginary parts of complex elements count one by one. Smallest, largest,
// mean and norm (root of the sum of squares) leave NaN and infinities out.
struct Statistics {
  std::uint64_t numbers = 0;
  std::uint64_t zeros = 0;
  std::uint64_t nans = 0;
  std::uint64_t infinities = 0;
  double smallest = 0;  // 0 when there is no finite number
  double largest = 0;
  double mean = 0;
  double norm = 0;

  std::uint64_t finite() const { return numbers - nans - infinities; }
};

// Of which elements; unset: of all.
struct StatisticsOf {
  std::optional<Rank> holder = std::nullopt;     // those that this rank wrote
  std::optional<FlatRange> rows = std::nullopt;  // along the first dimension
};
// Nothing for the sub-byte dtypes. REQUIRES: a tensor whose rows are chosen has dimensions.
Result<std::optional<Statistics>> statistics_of(const Checkpoint& checkpoint,
                                                const TensorEntry& tensor, const StatisticsOf& of);

}  // namespace ebb::formats
