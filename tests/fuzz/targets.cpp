#include "tests/fuzz/targets.h"

#include <algorithm>
#include <array>

namespace ebb::fuzz {
namespace {

constexpr std::array kTargets = {
    Target{"pickle", pickle},
    Target{"zip", zip},
    Target{"torch_archive", torch_archive},
    Target{"torch_file", torch_file},
    Target{"zstd_stream", zstd_stream},
    Target{"dcp", dcp},
    Target{"dcp_ranks", dcp_ranks},
    Target{"megatron", megatron},
    Target{"megatron_ranks", megatron_ranks},
    Target{"safetensors_header", safetensors_header},
    Target{"safetensors_index", safetensors_index},
    Target{"deepspeed_names", deepspeed_names},
    Target{"deepspeed", deepspeed},
    Target{"hdf5_report", hdf5_report},
    Target{"hdf5_superblock", hdf5_superblock},
    Target{"hdf5_values", hdf5_values},
    Target{"native_manifest", native_manifest},
    Target{"native_store", native_store},
    Target{"any_tree", any_tree},
};

}  // namespace

std::span<const Target> all_targets() { return kTargets; }

const Target* target_named(std::string_view name) {
  const auto found = std::find_if(kTargets.begin(), kTargets.end(),
                                  [&](const Target& target) { return target.name == name; });
  return found == kTargets.end() ? nullptr : &*found;
}

}  // namespace ebb::fuzz
