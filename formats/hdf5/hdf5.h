// HDF5 checkpoints: one file, or one per rank under a file of virtual datasets.
// docs/formats/hdf5.md.
#pragma once

#include <memory>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/catalog/emit.h"
#include "ebb/formats/catalog/resume.h"

namespace ebb::formats {

bool detect_hdf5(const SourceTree& tree);

// What each file declares comes from the helper program ebb-hdf5-reader (SourceTree::probe), and
// is checked against the files here; elements are then read from the files directly.
Result<std::unique_ptr<Checkpoint>> describe_hdf5(std::shared_ptr<const SourceTree> tree);
ResumeRules hdf5_resume();

// state.h5; with several ranks a file of each, rank<N>.h5, under state.h5's virtual datasets.
Result<EmitPlan> emit_hdf5(const EmitRequest& request);

}  // namespace ebb::formats
