// Whether an optimizer can be of the model that lies beside it: they are files of their own, and
// people copy files. Internal to formats/folders.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "ebb/formats/catalog/catalog.h"

namespace ebb::formats::folders {

struct Fit {
  std::size_t params = 0;     // of the model; those that are tied once
  std::size_t optimized = 0;  // parameters of the optimizers
  // Those whose states have the shape of no parameter, nor of a part of one: of another model.
  std::vector<std::string> strangers;

  bool fits() const { return strangers.empty() && optimized <= params; }
  // Why it does not, in a few words.
  std::string why() const;
};

Fit fit_of(const Catalog& catalog);

}  // namespace ebb::formats::folders
