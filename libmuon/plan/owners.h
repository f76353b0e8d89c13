// Which rank owns which Muon matrix: one of those that hold its gradient, so that nothing of an
// expert leaves the ranks of its class.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ebb/libmuon/plan/param_classes.h"

namespace ebb::libmuon {

// Flops of a matrix' Newton-Schulz, one step. REQUIRES: a Muon matrix.
double newton_schulz_flops_of(const ModelSpec& model, std::uint32_t param);

// By parameter, as a rank of the world; 0 where there is nothing to own. Longest processing time
// first, onto the least loaded rank of its class: what a rank has of one class counts in all. Ties
// go to the lower rank. A function of model and classes, the same on all ranks.
std::vector<std::uint32_t> choose_owners(const ModelSpec& model,
                                         std::span<const ParamClass> classes);

}  // namespace ebb::libmuon
