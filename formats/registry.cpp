#include "formats/registry.h"

#include <array>
#include <string>

#include "formats/dcp/dcp.h"
#include "formats/deepspeed/deepspeed.h"
#include "formats/hdf5/hdf5.h"
#include "formats/megatron/megatron.h"
#include "formats/native/ebb.h"
#include "formats/safetensors/safetensors.h"
#include "formats/torch/torch.h"

namespace formats {
namespace {

// The first one whose detect() says yes reads a checkpoint.
constexpr std::array kFormats = {
    Format{"ebb", "a swap store of this library, or the swap directory that holds one", detect_ebb,
           describe_ebb, emit_ebb, Policy::layer_wise, StepCounters::values, ebb_resume},
    // DCP underneath, so before it.
    Format{"megatron", "Megatron torch_dist, megatron-core 0.12 to 0.19", detect_megatron,
           describe_megatron, emit_megatron, Policy::rows, StepCounters::values, megatron_resume,
           why_bound_to_megatron, nullptr, nullptr, megatron_problems},
    Format{"megatron-fsdp", "Megatron-FSDP fsdp_dtensor", detect_megatron_fsdp,
           describe_megatron_fsdp, emit_megatron_fsdp, Policy::rows, StepCounters::tensors,
           megatron_fsdp_resume, nullptr, nullptr, megatron_fsdp_names, megatron_problems},
    Format{"dcp", "PyTorch Distributed Checkpoint directory, torch 2.0 to 2.15", detect_dcp,
           describe_dcp, emit_dcp, Policy::rows, StepCounters::tensors, dcp_resume, nullptr,
           respell_for_dcp},
    // Has model files of the same names, so before it.
    Format{"deepspeed-universal", "DeepSpeed universal, Adam and Muon", detect_deepspeed_universal,
           describe_deepspeed_universal, emit_deepspeed_universal, Policy::replicated,
           StepCounters::values, deepspeed_universal_resume},
    Format{"deepspeed", "DeepSpeed ZeRO stages 1 to 3, Adam and Muon", detect_deepspeed,
           describe_deepspeed, emit_deepspeed, Policy::zero3, StepCounters::values,
           deepspeed_resume},
    Format{"safetensors", "one file, several with an index, or torch DCP's shards",
           detect_safetensors, describe_safetensors, emit_safetensors, Policy::rows,
           StepCounters::tensors, safetensors_resume},
    Format{"hdf5", "one file, or one per rank under virtual datasets", detect_hdf5, describe_hdf5,
           emit_hdf5, Policy::rows, StepCounters::tensors, hdf5_resume},
    // Last: other formats are made of such files.
    Format{"torch", "one torch.save file: .pt, .pth or .bin, zip or the older stream", detect_torch,
           describe_torch, emit_torch, Policy::replicated, StepCounters::tensors, torch_resume,
           nullptr, respell_for_torch, torch_common_names},
};

}  // namespace

std::span<const Format> registered_formats() { return kFormats; }

const Format* format_named(std::string_view name) {
  for (const Format& format : registered_formats())
    if (format.name == name) return &format;
  return nullptr;
}

Result<std::unique_ptr<Checkpoint>> describe(std::shared_ptr<const SourceTree> tree) {
  for (const Format& format : registered_formats()) {
    if (!format.detect(*tree)) continue;
    auto described = format.describe(tree);
    if (described || described.error().code != Code::layout) return described;
    // Parts that do not fit together are damage here; elsewhere it is what was asked for that does
    // not fit.
    Error error = std::move(described).error();
    error.code = Code::corrupt;
    return error;
  }
  return Error{Code::unsupported,
               std::string(tree->root()) + ": no checkpoint of a known format is here",
               "ckpt-inspect --help lists the formats this version reads"};
}

}  // namespace formats
