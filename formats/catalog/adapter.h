// Adapters of PEFT: LoRA and its like, trained beside a base model that lies elsewhere.
#pragma once

#include <string_view>

#include "ebb/formats/catalog/catalog.h"

namespace ebb::formats {

// Whether the weights are an adapter's alone, by the names that get_peft_model_state_dict gives
// them: all below base_model, none of the base itself, none with the name that an adapter has in a
// model (peft 0.21, utils/save_and_load.py).
bool is_adapter(const Catalog& catalog);

inline constexpr std::string_view kAdapterConfig = "adapter_config.json";

}  // namespace ebb::formats
