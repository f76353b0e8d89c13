#include "ebb/formats/catalog/renaming.h"

#include <algorithm>
#include <utility>

namespace ebb::formats {

void rename_beside_tensors(Catalog& catalog, const std::function<void(std::string&)>& rename) {
  for (GroupEntry& group : catalog.groups) std::ranges::for_each(group.params, rename);
  for (const auto& [name, steps] : std::exchange(catalog.param_steps, {})) {
    std::string fresh = name;
    rename(fresh);
    catalog.param_steps.emplace(std::move(fresh), steps);
  }
}

}  // namespace ebb::formats
