#include "ebb/formats/registry.h"

#include <array>
#include <string>

#include "ebb/formats/dcp/dcp.h"
#include "ebb/formats/deepspeed/deepspeed.h"
#include "ebb/formats/hdf5/description.h"
#include "ebb/formats/hdf5/hdf5.h"
#include "ebb/formats/megatron/megatron.h"
#include "ebb/formats/native/ebb.h"
#include "ebb/formats/safetensors/safetensors.h"
#include "ebb/formats/torch_save/torch_save.h"

namespace ebb::formats {
namespace {

// The first one whose detect() says yes reads a checkpoint.
constexpr std::array kFormats = {
    Format{.name = "ebb",
           .summary = "a swap store of this library, or the swap directory that holds one",
           .detect = detect_ebb,
           .describe = describe_ebb,
           .emit = emit_ebb,
           .default_policy = Policy::layer_wise,
           .steps = StepCounters::values,
           .resume = ebb_resume},
    // DCP underneath, so before it.
    Format{.name = "megatron",
           .summary = "Megatron torch_dist, megatron-core 0.12 to 0.19",
           .detect = detect_megatron,
           .describe = describe_megatron,
           .emit = emit_megatron,
           .steps = StepCounters::values,
           .resume = megatron_resume,
           .bound = why_bound_to_megatron,
           .problems = megatron_problems},
    Format{.name = "megatron-fsdp",
           .summary = "Megatron-FSDP fsdp_dtensor",
           .detect = detect_megatron_fsdp,
           .describe = describe_megatron_fsdp,
           .emit = emit_megatron_fsdp,
           .resume = megatron_fsdp_resume,
           .common_names = megatron_fsdp_names,
           .problems = megatron_problems},
    Format{.name = "dcp",
           .summary = "PyTorch Distributed Checkpoint directory, torch 2.0 to 2.15",
           .detect = detect_dcp,
           .describe = describe_dcp,
           .emit = emit_dcp,
           .resume = dcp_resume,
           .respell = respell_for_dcp,
           .common_names = dcp_common_names,
           .names_for = NamesFor::formats_of_parameters,
           .packs = Packs::zstd},
    // Has model files of the same names, so before it.
    Format{.name = "deepspeed-universal",
           .summary = "DeepSpeed universal, Adam and Muon",
           .detect = detect_deepspeed_universal,
           .describe = describe_deepspeed_universal,
           .emit = emit_deepspeed_universal,
           .default_policy = Policy::replicated,
           .steps = StepCounters::values,
           .resume = deepspeed_universal_resume},
    Format{.name = "deepspeed",
           .summary = "DeepSpeed ZeRO stages 1 to 3, Adam and Muon",
           .detect = detect_deepspeed,
           .describe = describe_deepspeed,
           .emit = emit_deepspeed,
           .default_policy = Policy::zero3,
           .steps = StepCounters::values,
           .resume = deepspeed_resume},
    Format{.name = "safetensors",
           .summary = "one file, several with an index, or torch DCP's shards",
           .detect = detect_safetensors,
           .describe = describe_safetensors,
           .emit = emit_safetensors,
           .resume = safetensors_resume,
           .holds = Holds::keyed_tensors,
           .file_size = FileSize::limited},
    Format{.name = "hdf5",
           .summary = "one file, or one per rank under virtual datasets",
           .detect = detect_hdf5,
           .describe = describe_hdf5,
           .emit = emit_hdf5,
           .resume = hdf5_resume,
           .holds = Holds::keyed_tensors,
           .packs = Packs::zstd,
           .reader_program = hdf5::kReaderProgram},
    // Last: other formats are made of such files.
    Format{.name = "torch",
           .summary = "one torch.save file: .pt, .pth or .bin, zip or the older stream",
           .detect = detect_torch,
           .describe = describe_torch,
           .emit = emit_torch,
           .default_policy = Policy::replicated,
           .resume = torch_resume,
           .respell = respell_for_torch,
           .common_names = torch_common_names},
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

}  // namespace ebb::formats
