#include "tests/durability/histories/handed_in.h"

#include <cmath>

#include "tests/libmuon/support/world.h"

namespace ebb::test {
namespace {

float coarse(float value, float size) { return std::floor(value * size * 32) / 32; }

}  // namespace

Given given(const Meaning& meaning, std::uint32_t param, std::uint64_t step) {
  if (!meaning.absent) return Given::gradient;
  const float drawn = noise(meaning.seed + 1, param, step);
  if (drawn < -0.7f) return Given::untouched;
  return drawn > 0.7f ? Given::zero : Given::gradient;
}

float gradient_of(const Meaning& meaning, std::uint32_t param, std::uint64_t step,
                  std::uint64_t element, Part part) {
  const auto other = [&](std::uint32_t number) {
    return coarse(noise(meaning.seed + 2 + number, 1000 * step + param, element), 0.5f);
  };
  if (part.number + 1 < part.parts) return other(part.number);
  float value = given(meaning, param, step) == Given::gradient
                    ? coarse(noise(meaning.seed, 1000 * step + param, element), 1)
                    : 0.0f;
  for (std::uint32_t i = 0; i + 1 < part.parts; ++i) value -= other(i);
  return value;
}

bool is_written(const Meaning& meaning, std::uint32_t param, std::uint64_t step) {
  return meaning.writes && noise(meaning.seed + 100, param, step) > 0.5f;
}

float written(const Meaning& meaning, std::uint32_t param, std::uint64_t step,
              std::uint64_t element) {
  const float middle = 2 + 0.75f * static_cast<float>(step);
  const float value =
      middle + coarse(noise(meaning.seed + 101, 1000 * step + param, element), 0.5f);
  return step % 2 == 0 ? value : -value;
}

Result<> set_learning_rates(libmuon::Engine& engine, const Meaning& meaning) {
  if (!meaning.scheduled) return {};
  const double part = 1 - 0.1 * static_cast<double>(engine.step_count());
  for (const std::uint32_t group : {0u, 2u})
    EBB_TRY(engine.set_learning_rate(group, meaning.muon.lr * part));
  return {};
}

}  // namespace ebb::test
