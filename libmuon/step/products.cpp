// How products are made: chosen once, kept with the state, told.
#include <algorithm>
#include <cmath>

#include "ebb/libmuon/step/engine_impl.h"

namespace ebb::libmuon {
namespace {

bool multiplies(const EngineConfig& config, Precision precision) {
  return std::ranges::any_of(config.model.groups, [precision](const GroupSpec& group) {
    const auto* muon = std::get_if<MuonSpec>(&group);
    return muon != nullptr && muon->precision == precision;
  });
}

std::string tenths(double value) {
  const auto all = static_cast<std::uint64_t>(std::llround(value * 10));
  return compose("{}.{}", all / 10, all % 10);
}

}  // namespace

Result<> Engine::Impl::choose_products(std::string_view kept) {
  products_note.clear();
  return config.accelerator != nullptr ? choose_of_device(kept) : choose_bf16(bf16_in(kept));
}

Result<> Engine::Impl::choose_of_device(std::string_view kept) {
  Accelerator& device = *config.accelerator;
  const bool narrow = multiplies(config, Precision::bf16) || multiplies(config, Precision::fp16);
  const std::optional<std::uint32_t> known = device.choice_in(kept);
  Result<Accelerator::Choice> mine = Accelerator::Choice{known.value_or(0), ""};
  if (!known && narrow) mine = device.measure();
  EBB_TRY(agree_all(mine ? Result<>() : mine.error(), "choosing how its device multiplies"));
  EBB_TRY_ASSIGN(const std::int64_t least, ranks.agree(mine->choice));
  choice = static_cast<std::uint32_t>(least);
  products_note = mine->note;
  device_kernels->choose(choice);
  if (updates != nullptr) updates->choose(choice);
  return {};
}

Result<> Engine::Impl::choose_bf16(std::optional<Bf16> kept) {
  bf16.reset();
  const bool mine = has_real_bf16();
  const bool asked = config.bf16 == Bf16::real;
  EBB_TRY(agree_all(asked && !mine ? Error{Code::unsupported,
                                           "this processor has no products of bf16 (AVX512_BF16)",
                                           "leave EngineConfig::bf16 out, or set it to emulated"}
                                   : Result<>(),
                    "choosing how bf16 is multiplied"));
  if (!multiplies(config, Precision::bf16)) return {};
  const std::optional<Bf16> known = config.bf16 ? config.bf16 : kept;
  const bool measures = !known && parts.plan.rank() == Rank{0};
  const Bf16Choice measured = measures ? measure_bf16() : Bf16Choice();
  const bool real = measures ? measured.bf16 == Bf16::real : mine && known != Bf16::emulated;
  EBB_TRY_ASSIGN(const std::int64_t all, ranks.agree(real ? 1 : 0));
  bf16 = all == 1 ? Bf16::real : Bf16::emulated;
  const std::string how = measures          ? tenths(measured.gain) + " times fp32, measured"
                          : !known          ? "as rank 0 measured"
                          : config.bf16     ? "as set"
                          : *known == *bf16 ? "as before"
                                            : "not every processor has real ones, as before";
  products_note = compose("products of bf16: {}, {}", name_of(*bf16), how);
  return {};
}

}  // namespace ebb::libmuon
