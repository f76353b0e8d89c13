#include "ebb/libmuon/step/computing.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "ebb/libmuon/kernels/kernels.h"
#include "ebb/libmuon/step/manifest_template.h"
#include "ebb/libmuon/step/norm.h"

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

Computing::Computing(const Setup& setup, std::unique_ptr<libswap::Pool> pool)
    : setup_(setup),
      pool_(std::move(pool)),
      host_(make_host_kernels({*pool_, setup.config.trace, setup.rank()})),
      adding_(make_host_kernels({*pool_, setup.config.trace, setup.rank()})) {}

Result<std::unique_ptr<Computing>> Computing::make(const Setup& setup) {
  EBB_TRY_ASSIGN(auto pool, libswap::Pool::start(setup.config.threads));
  std::unique_ptr<Computing> made(new Computing(setup, std::move(pool)));
  if (setup.config.accelerator != nullptr) {
    EBB_TRY_ASSIGN(made->device_, made->more_kernels());
    EBB_TRY_ASSIGN(made->look_room_, libswap::allocate(&setup.config.accelerator->device(),
                                                       setup.prepared.memory.look));
  }
  return made;
}

Result<std::unique_ptr<Kernels>> Computing::more_kernels() const {
  const EngineConfig& config = setup_.config;
  const KernelsFor what{*pool_, config.trace, setup_.rank()};
  if (config.accelerator == nullptr) return make_host_kernels(what);
  EBB_TRY_ASSIGN(auto kernels, config.accelerator->kernels(what));
  if (kernels == nullptr || kernels->device() != &config.accelerator->device())
    return Error{Code::usage,
                 compose("the accelerator gives no kernels of its own device, {}",
                         config.accelerator->device().name()),
                 "ebb/libmuon/kernels/table.h says what it owes"};
  return kernels;
}

std::string Computing::fingerprint() const { return fingerprint_of(setup_.config, bf16_, choice_); }

Look Computing::look(std::span<const LookRange> ranges, Side side) const {
  return look_at(ranges, near(side), *pool_, look_room_.buffer());
}

Result<> Computing::choose(std::string_view kept) {
  note_.clear();
  return setup_.config.accelerator != nullptr ? choose_of_device(kept) : choose_bf16(bf16_in(kept));
}

Result<> Computing::choose_of_device(std::string_view kept) {
  const EngineConfig& config = setup_.config;
  Accelerator& device = *config.accelerator;
  const bool narrow = multiplies(config, Precision::bf16) || multiplies(config, Precision::fp16);
  const std::optional<std::uint32_t> known = device.choice_in(kept);
  Result<Accelerator::Choice> mine = Accelerator::Choice{known.value_or(0), ""};
  if (!known && narrow) mine = device.measure();
  EBB_TRY(libswap::agree_all(setup_.ranks, mine ? Result<>() : mine.error(),
                             "choosing how its device multiplies"));
  EBB_TRY_ASSIGN(const std::int64_t least, setup_.ranks.agree(mine->choice));
  choice_ = static_cast<std::uint32_t>(least);
  note_ = mine->note;
  device_->choose(choice_);
  return {};
}

Result<> Computing::choose_bf16(std::optional<Bf16> kept) {
  const EngineConfig& config = setup_.config;
  bf16_.reset();
  const bool mine = has_real_bf16();
  const bool asked = config.bf16 == Bf16::real;
  EBB_TRY(libswap::agree_all(
      setup_.ranks,
      asked && !mine
          ? Error{Code::unsupported, "this processor has no products of bf16 (AVX512_BF16)",
                  "leave EngineConfig::bf16 out, or set it to emulated"}
          : Result<>(),
      "choosing how bf16 is multiplied"));
  if (!multiplies(config, Precision::bf16)) return {};
  const std::optional<Bf16> known = config.bf16 ? config.bf16 : kept;
  const bool measures = !known && setup_.rank() == Rank{0};
  const Bf16Choice measured = measures ? measure_bf16() : Bf16Choice();
  const bool real = measures ? measured.bf16 == Bf16::real : mine && known != Bf16::emulated;
  EBB_TRY_ASSIGN(const std::int64_t all, setup_.ranks.agree(real ? 1 : 0));
  bf16_ = all == 1 ? Bf16::real : Bf16::emulated;
  const std::string how = measures           ? tenths(measured.gain) + " times fp32, measured"
                          : !known           ? "as rank 0 measured"
                          : config.bf16      ? "as set"
                          : *known == *bf16_ ? "as before"
                                             : "not every processor has real ones, as before";
  note_ = compose("products of bf16: {}, {}", name_of(*bf16_), how);
  return {};
}

}  // namespace ebb::libmuon
