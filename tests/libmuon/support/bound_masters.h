// A trainer whose weights are masters, or high halves of them, and what it is to get.
#pragma once

#include <array>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tests/libmuon/support/training.h"

namespace ebb::test {

inline const libmuon::StateDTypes kHalves = {{"master", DType::u16}};
inline const libmuon::StateDTypes kWeightsAreMasters = {{"master", std::nullopt}};
inline constexpr std::array kBoundMasters = {libmuon::Masters::halves, libmuon::Masters::bound};
inline constexpr std::uint64_t kSteps = 4;

using Stored = std::map<std::string, std::vector<float>>;  // as tensors_of()

// All weights in bf16, or in fp32 where they are masters; one matrix of several tiles.
libmuon::ModelSpec model_of(libmuon::Masters masters);
libmuon::ModelSpec model_in_halves();
Training bound(libmuon::Masters masters, Training setup);
Training in_halves(Training setup);
// The nearest number of bf16, of two the one farther from zero: by arithmetic on the value.
float away(float value);
// What rank 0 of such a trainer has of these masters.
std::vector<float> handed_out(const Training& setup, const Stored& stored);
// What masters in fp32, and all else, hold after so many undisturbed steps of one rank.
const Stored& reference(std::uint64_t steps);

}  // namespace ebb::test
