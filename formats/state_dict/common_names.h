// Names of the parameters of a torch state dict.
#pragma once

#include "ebb/formats/catalog/common_names.h"

namespace ebb::formats {

// Parameters as the model's state dict calls them: `model`, `state_dict` and `module` lead to
// parameters, an optimizer's numbers become names through its param_names or, where that leaves no
// choice, through the shapes of the model's parameters in their order.
CommonNames torch_common_names(const Catalog& catalog);

}  // namespace ebb::formats
