// A described checkpoint under another catalog: its tensors by other names, its values otherwise.
#pragma once

#include <memory>

#include "ebb/formats/catalog/catalog.h"

namespace ebb::formats {

// The tensors of `catalog` must be those of `stored` in all that reading them needs: key, dtype,
// shape, chunks.
std::unique_ptr<Checkpoint> with_catalog(std::unique_ptr<Checkpoint> stored, Catalog catalog);

}  // namespace ebb::formats
