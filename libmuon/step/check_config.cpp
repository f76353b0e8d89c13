#include "ebb/libmuon/step/check_config.h"

#include <algorithm>

#include "ebb/libmuon/step/side.h"

namespace ebb::libmuon {
namespace {

// Of a choice that a caller made of a number.
template <typename T>
Result<> check_choice(std::string_view what, T value, T last) {
  if (value <= last) return {};
  return Error{Code::usage, compose("{} = {} is none of its values, 0 to {}", what,
                                    static_cast<unsigned>(value), static_cast<unsigned>(last))};
}

Result<> check_choices(const EngineConfig& config) {
  EBB_TRY(check_choice("PartitionSpec::placement", config.partition.placement, Placement::shard));
  EBB_TRY(check_choice("PartitionSpec::hand_in", config.partition.hand_in, HandIn::partial));
  EBB_TRY(check_choice("EngineConfig::partial_sums", config.partial_sums, PartialSums::kept));
  EBB_TRY(check_choice("EngineConfig::gradients_on", config.gradients_on, Side::device));
  EBB_TRY(check_choice("EngineConfig::weights_on", config.weights_on, Side::device));
  if (config.bf16) EBB_TRY(check_choice("EngineConfig::bf16", *config.bf16, Bf16::real));
  for (const auto& [state, tier] : config.tiers)
    EBB_TRY(check_choice("the tier of " + state, tier, libswap::Tier::device));
  return {};
}

// Kernels that know fp32 alone would take its bits for other numbers.
Result<> check_travelling(const EngineConfig& config) {
  if (config.partition.placement == Placement::owner || config.accelerator == nullptr ||
      config.accelerator->takes_what_travels())
    return {};
  for (std::size_t i = 0; i < config.model.groups.size(); ++i) {
    const auto* const spec = std::get_if<MuonSpec>(&config.model.groups[i]);
    if (spec == nullptr || result_dtype(*spec) == DType::f32) continue;
    return Error{Code::unsupported,
                 compose("group {}: its updates travel in {}, and the kernels of {} take fp32", i,
                         name_of(result_dtype(*spec)), config.accelerator->device().name()),
                 "use Placement::owner"};
  }
  return {};
}

Result<> check_streaming(const EngineConfig& config) {
  if (config.stream_above_bytes == kNothingStreamed) return {};
  const auto refused = [](std::string_view what, std::string_view instead) {
    return Error{Code::unsupported, compose("matrices are not streamed with {}", what),
                 compose("{}leave stream_above_bytes as it is", instead)};
  };
  if (config.accelerator != nullptr) return refused("an accelerator", "");
  if (config.partition.hand_in == HandIn::partial)
    return refused("partial gradients", "reduce them before they are handed in, or ");
  if (config.partition.placement == Placement::shard)
    return refused("Muon's state on shards", "use Placement::owner, or ");
  return {};
}

// What its kernels could not do must not begin.
Result<> check_accelerator(const EngineConfig& config, const Columns& columns) {
  if (config.accelerator == nullptr) return {};
  // Each step compares the checksums of what it handed out: they would be copied back for it.
  if (columns.in_halves() && config.weights_on == Side::device)
    return Error{
        Code::unsupported,
        compose("master is not kept as {} of weights that lie on {}",
                formats::name_of(columns.dtype(kMaster)), config.accelerator->device().name()),
        "keep it in fp32, or bind weights on the host"};
  const DType dtype = columns.of(TileKind::momentum).front().dtype;
  if (config.accelerator->takes_momentum_in(dtype)) return {};
  return Error{Code::unsupported,
               compose("{} does not take momentum_buffer as {}",
                       config.accelerator->device().name(), formats::name_of(dtype)),
               "keep it in fp32 or bf16, or compute on the host"};
}

}  // namespace

Result<> check_config(const EngineConfig& config) {
  if (config.model.params.empty())
    return Error{Code::usage, "the model has no parameters: there is nothing to step"};
  if (config.threads == 0)
    return Error{Code::usage, "threads = 0: nothing would compute", "leave the default, 1"};
  if (config.chunk_bytes == 0)
    return Error{Code::usage, "a chunk of 0 bytes holds nothing", "leave the default, 256 MiB"};
  EBB_TRY(check_choices(config));
  for (const GroupSpec& group : config.model.groups)
    EBB_TRY(std::visit([](const auto& spec) { return validate(spec); }, group));
  for (const GroupSpec& group : config.model.groups)
    if (const auto* muon = std::get_if<MuonSpec>(&group); muon && config.accelerator)
      EBB_TRY(config.accelerator->does(*muon));
  return {};
}

Result<> check_with(const EngineConfig& config, const Columns& columns) {
  EBB_TRY(check_streaming(config));
  EBB_TRY(check_accelerator(config, columns));
  return check_travelling(config);
}

}  // namespace ebb::libmuon
