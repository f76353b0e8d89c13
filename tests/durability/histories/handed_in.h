// What a history's trainer hands in: functions of (parameter, step, element) alone, so that every
// start of it makes the same. All are multiples of 2^-5, small enough for bf16: parts of them add
// up to them exactly, in any order.
#pragma once

#include "tests/durability/histories/history.h"

namespace ebb::test {

enum class Given : std::uint8_t { gradient, untouched, zero };
Given given(const Meaning& meaning, std::uint32_t param, std::uint64_t step);

// One of `parts`, whose sum is the gradient.
struct Part {
  std::uint32_t number = 0, parts = 1;
};
float gradient_of(const Meaning& meaning, std::uint32_t param, std::uint64_t step,
                  std::uint64_t element, Part part = {});

// What a trainer writes to its weights behind a step: whole parameters, of numbers of bf16 that
// training does not come to, nor from what was written behind another step. What masters are
// then depends neither on what weights nor on what masters are kept as.
bool is_written(const Meaning& meaning, std::uint32_t param, std::uint64_t step);
float written(const Meaning& meaning, std::uint32_t param, std::uint64_t step,
              std::uint64_t element);

inline constexpr libmuon::StepArgs kHistoryArgs{.inv_scale = 0.5, .max_norm = 3};
// Of the Muon groups, for the next step; where the history has a schedule.
Result<> set_learning_rates(libmuon::Engine& engine, const Meaning& meaning);

}  // namespace ebb::test
