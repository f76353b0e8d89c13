// A trainer whose masters are in halves, and what it is to get.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "tests/libmuon/support/training.h"

namespace ebb::test {

inline const libmuon::StateDTypes kHalves = {{"master", DType::u16}};
inline constexpr std::uint64_t kSteps = 4;

using Stored = std::map<std::string, std::vector<float>>;  // as tensors_of()

// All weights in bf16, one matrix of several tiles.
libmuon::ModelSpec model_in_halves();
Training in_halves(Training setup);
// The nearest number of bf16, of two the one farther from zero: by arithmetic on the value.
float away(float value);
// What rank 0 of such a trainer has of these masters.
std::vector<float> handed_out(const Training& setup, const Stored& stored);
// What masters in fp32, and all else, hold after so many undisturbed steps of one rank.
const Stored& reference(std::uint64_t steps);

}  // namespace ebb::test
