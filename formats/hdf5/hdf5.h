// HDF5 checkpoints: one file, or one per rank under a file of virtual datasets.
// docs/formats/hdf5.md.
#pragma once

#include <memory>

#include "formats/catalog/catalog.h"

namespace formats {

bool detect_hdf5(const SourceTree& tree);

// What each file declares comes from the helper program ebb-hdf5-reader (SourceTree::probe), and
// is checked against the files here; elements are then read from the files directly.
Result<std::unique_ptr<Checkpoint>> describe_hdf5(std::shared_ptr<const SourceTree> tree);

}  // namespace formats
