// Two checkpoints as logical content: the same tensors and values, however they are cut and stored.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "formats/catalog/catalog.h"

namespace tools {

struct Comparison {
  std::uint64_t equal_tensors = 0;
  std::uint64_t equal_bytes = 0;
  std::vector<std::string> differences;  // one line each: "w (momentum_buffer): bits differ"
  std::uint64_t values_in_both = 0;
  std::uint64_t values_only_left = 0;
  std::uint64_t values_only_right = 0;

  bool same() const { return differences.empty(); }
};

struct Side {
  const formats::Checkpoint& checkpoint;
  std::vector<const formats::TensorEntry*> tensors;
};

// Called before each tensor's bits are compared; an error ends the comparison.
using Step = std::function<formats::Result<>(const formats::TensorEntry&)>;

// Tensors are matched by name and state, a master or buffer that stands for the parameter being
// one; where those are not unique on both sides, by key. Bits are compared through SHA-256. Reads
// both sides once.
formats::Result<Comparison> compare(const Side& left, const Side& right, const Step& step);

}  // namespace tools
