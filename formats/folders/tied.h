// Parameters with two names, of which transformers saves one: that there are any is in config.json.
// Internal to formats/folders.
#pragma once

#include <optional>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/core/byte_source.h"
#include "ebb/formats/core/result.h"

namespace ebb::formats::folders {

// {other name: the one in the model}. nullopt: there are none, or nothing tells which they are.
// Code::corrupt where config.json is torn.
Result<std::optional<Value>> tied_names(const SourceTree& tree, const Catalog& catalog);

}  // namespace ebb::formats::folders
