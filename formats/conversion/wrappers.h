// What wrappers of a model put into the names of its parameters: `_orig_mod.` of torch.compile,
// `module.` of DDP, `_forward_module.` of Lightning, `_fsdp_wrapped_module.` and
// `_checkpoint_wrapped_module.` in the middle. The model itself has none of it.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "ebb/formats/catalog/catalog.h"

namespace ebb::formats {

// Without the words of wrappers; `module` counts as one only in front.
std::string bare_name(std::string_view name);

enum class Wrappers : std::uint8_t {
  off,       // of every parameter
  off_apart  // where an optimizer's states and their parameters have different names, and only
             // there
};

// Of a whole checkpoint, of which `content` may be a part.
struct ParamNames {
  std::set<std::string> of_model;
  std::set<std::string> of_optimizers;
};

// Takes wrappers out of the names of `content`. In front they go where all parameters have them or
// where the names that optimizers have are without; in the middle wherever they are. A name that
// would be another's stays. One line for what was done, and one for what stayed.
std::vector<std::string> unwrap_names(Wrappers which, const ParamNames& names, Catalog& content);

// Where all names begin with one that a trainer's own class gives its model: how to have them
// without. One line, or none.
std::vector<std::string> hint_to_strip(const Catalog& content);

}  // namespace ebb::formats
