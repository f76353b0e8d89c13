// Two checkpoints as logical content: the same tensors and values, however they are cut, stored and
// called. Both sides are read once, a run at a time.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ebb/formats/catalog/catalog.h"

namespace ebb::tools::inspect {

struct Side {
  const Checkpoint& checkpoint;
  std::vector<const TensorEntry*> tensors;
  const Catalog& catalog() const { return checkpoint.catalog(); }
};

// One tensor that is not the same on both sides.
struct TensorDifference {
  enum class Kind : std::uint8_t { only_left, only_right, shape, dtype, values };
  Kind kind = Kind::values;
  const TensorEntry* left = nullptr;
  const TensorEntry* right = nullptr;
  // Of tensors of one shape; dtypes that differ are compared by value.
  std::uint64_t differing = 0;    // elements
  Shape first;                    // the index of the first of them
  std::optional<double> largest;  // of |left - right|; infinite when one is NaN
  bool derived = false;           // left was compared with the right's master, rounded
};

struct Comparison {
  std::uint64_t equal_tensors = 0;
  std::uint64_t equal_bytes = 0;
  std::uint64_t derived = 0;  // of the equal ones: weights that one side alone stores
  std::vector<TensorDifference> tensors;
  std::uint64_t values_in_both = 0;
  std::vector<std::string> values;            // one line each: "step: 3 against 5"
  std::vector<std::string> values_only_left;  // keys
  std::vector<std::string> values_only_right;

  bool same() const { return tensors.empty() && values.empty(); }
};

// Which tensors are the same one. By name and state; where one side calls the weights master or
// buffer and the other param, the dtype decides. By key where names are not unique.
struct Match {
  const TensorEntry* left = nullptr;   // nullptr: only on the right
  const TensorEntry* right = nullptr;  // nullptr: only on the left
  // A 16-bit weight that the other side does not store: its master, which is rounded to give it.
  const TensorEntry* master = nullptr;
};
// Steps of a parameter that the other side counts outside its tensors are left to compare_values.
std::vector<Match> match_tensors(const Side& left, const Side& right);

// nullopt: equal bit for bit.
Result<std::optional<TensorDifference>> compare_tensors(const Side& left, const Side& right,
                                                        const Match& match);

// Step, groups' settings, steps of parameters, and values that both sides have.
Result<> compare_values(const Side& left, const Side& right, Comparison& comparison);

}  // namespace ebb::tools::inspect
