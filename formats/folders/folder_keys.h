// Where the parts of a folder lie in its one state dict. Internal to formats/folders.
#pragma once

#include <string_view>

namespace ebb::formats::folders {

inline constexpr std::string_view kModelKey = "model";
inline constexpr std::string_view kModelHeaderKey =
    "model_metadata";  // texts of a safetensors file
inline constexpr std::string_view kOptimizerKey = "optimizer";
inline constexpr std::string_view kStateKey = "state";
inline constexpr std::string_view kGroupsKey = "param_groups";
inline constexpr std::string_view kTrainerStateKey = "trainer_state";
inline constexpr std::string_view kTrainerStepKey = "global_step";
inline constexpr std::string_view kSchedulerKey = "scheduler";

}  // namespace ebb::formats::folders
