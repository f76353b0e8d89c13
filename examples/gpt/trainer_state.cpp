#include "examples/gpt/trainer_state.h"

#include <array>
#include <cmath>
#include <span>

#include "ebb/formats/core/bytes.h"

namespace ebb::gpt {
namespace {

constexpr std::string_view kPosition = "gpt.data_position";
constexpr std::string_view kRandom = "gpt.random";
constexpr std::string_view kScale = "gpt.loss_scale";

Result<> put(libmuon::Engine& engine, std::string_view key,
             std::span<const std::uint64_t> numbers) {
  formats::ByteVector bytes;
  for (const std::uint64_t number : numbers) formats::append_le(bytes, number);
  return engine.set_blob(std::string(key), std::move(bytes));
}

// False where there is none.
Result<bool> take(const libmuon::Engine& engine, std::string_view key,
                  std::span<std::uint64_t> numbers) {
  const formats::ByteVector* blob = engine.blob(key);
  if (blob == nullptr) return false;
  if (blob->size() != numbers.size_bytes())
    return Error{Code::corrupt,
                 compose("{} has {} bytes, not {}", key, blob->size(), numbers.size_bytes())};
  formats::ByteReader in(*blob);
  for (std::uint64_t& number : numbers) number = in.number<std::uint64_t>().value_or(0);
  return true;
}

}  // namespace

double LossScale::value() const { return std::ldexp(1.0, static_cast<int>(bits)); }

void LossScale::went_well() {
  if (++good_steps < kGoodSteps) return;
  good_steps = 0;
  if (bits < kMostBits) ++bits;
}

bool LossScale::overflowed() {
  good_steps = 0;
  if (bits == 0) return false;
  --bits;
  return true;
}

Result<> keep(const TrainerState& state, libmuon::Engine& engine) {
  EBB_TRY(put(engine, kPosition, std::array{state.next_sequence}));
  EBB_TRY(put(engine, kRandom, std::array{state.seed}));
  return put(engine, kScale,
             std::array<std::uint64_t, 2>{state.loss_scale.bits, state.loss_scale.good_steps});
}

Result<bool> restore(TrainerState& state, const libmuon::Engine& engine) {
  std::array<std::uint64_t, 1> position{}, random{};
  std::array<std::uint64_t, 2> scale{};
  EBB_TRY_ASSIGN(const bool has_position, take(engine, kPosition, position));
  EBB_TRY_ASSIGN(const bool has_random, take(engine, kRandom, random));
  EBB_TRY_ASSIGN(const bool has_scale, take(engine, kScale, scale));
  if (!has_position || !has_random || !has_scale) return false;
  if (scale[0] > LossScale::kMostBits || scale[1] >= LossScale::kGoodSteps)
    return Error{Code::corrupt,
                 compose("{}: 2^{} after {} steps cannot be", kScale, scale[0], scale[1])};
  state.next_sequence = position[0];
  state.seed = random[0];
  state.loss_scale = {static_cast<std::uint32_t>(scale[0]), static_cast<std::uint32_t>(scale[1])};
  return true;
}

}  // namespace ebb::gpt
