// Which rank owns which Muon matrix: one of those that hold its gradient, so that nothing of an
// expert leaves the ranks of its class.
#pragma once

#include <cstdint>
#include <vector>

#include "ebb/libmuon/plan/model_layout.h"

namespace ebb::libmuon {

// What lies at one owner, whole: a matrix of a parameter, or several whose rows lie in one another
// or that have a block of momentum in common.
struct MatrixRun {
  FlatRange range;
  double flops = 0;  // of its Newton-Schulz, one step
};
// All of a parameter, in their order; momentum is in blocks of so many elements. REQUIRES: a Muon
// parameter.
std::vector<MatrixRun> matrix_runs_of(const ModelSpec& model, std::uint32_t param,
                                      std::uint64_t block = 1);

// Runs of one owner that follow each other.
struct OwnedRun {
  std::uint32_t param = 0;
  FlatRange range;
  std::uint32_t owner = 0;  // a rank of the world; 0 where there is nothing to own
};

// Where a trainer's elements are before a step and behind it.
struct TrainerLayouts {
  const ModelLayout& gradients;
  const ModelLayout& weights;
};

// Of all parameters, ascending. A whole costs its share of all Newton-Schulz or of all elements,
// whichever is larger; a rank's load is what its runs cost. As long as no load is above 1.05 of
// the mean, or what no choice of owners undercuts, the owner is who holds the most of it; else the
// least loaded rank of its class, the largest first. A function of model, layouts and block, the
// same on all ranks.
std::vector<OwnedRun> choose_owners(const ModelSpec& model, const TrainerLayouts& trainer,
                                    std::uint64_t block = 1);

}  // namespace ebb::libmuon
