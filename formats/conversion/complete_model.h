// Whether weights that were found in a checkpoint are all of the model's: an optimizer names the
// parameters that it has. Of those that are not read unread.h tells.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <vector>

#include "ebb/formats/catalog/format.h"
#include "ebb/formats/conversion/source_names.h"

namespace ebb::formats {

// What optimizers call their parameters: in groups, states and step counters.
std::set<std::string> optimizer_names(const SourceNames& names, const Catalog& catalog);

struct FoundWeights {
  std::set<std::string> names;  // of parameters and buffers
  std::set<Shape> shapes;       // of the same
  bool keys_are_names = false;  // nothing is known to be a model's: tensors under mere keys are
};

// Of the parameters that the selection `wanted` (null: everything) leaves, each that an optimizer
// of the source has must be among the found. Code::unsupported names those that are not.
Result<> check_complete(const Format& from, const std::set<std::string>& of_optimizers,
                        const Catalog& source, const FoundWeights& found,
                        const std::function<bool(const TensorEntry&)>& wanted);

// What of the model stays behind all the same, or is not what it seems; one line each.
std::vector<std::string> reservations(const SourceNames& names, const Catalog& source,
                                      const FoundWeights& found);

}  // namespace ebb::formats
