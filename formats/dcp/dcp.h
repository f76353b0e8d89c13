// PyTorch Distributed Checkpoint directories: `.metadata` (or one `__N.metadata` per rank) and the
// payload files it points into. Reads what torch 2.0 to 2.15 write; writes what torch 2.3 and newer
// load. Layout, versions and what is lost: docs/formats/dcp.md.
#pragma once

#include <memory>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/catalog/emit.h"
#include "ebb/formats/catalog/resume.h"

namespace ebb::formats {

bool detect_dcp(const SourceTree& tree);

// Reads the metadata and the values; tensors' payload files are only compared with their sizes.
// Each payload's own shape, dtype and CRC32 are checked when it is read.
Result<std::unique_ptr<Checkpoint>> describe_dcp(std::shared_ptr<const SourceTree> tree);

// One payload file a rank, one item per piece of the layout, replicated pieces once, `.metadata` as
// the commit file. Data lies 4096-aligned in the file except for items smaller than that.
Result<EmitPlan> emit_dcp(const EmitRequest& request);

// Keys and paths of a state dict, flattened as torch does, and the names that describe_dcp() gives
// them.
void respell_for_dcp(Catalog& content);

ResumeRules dcp_resume();

}  // namespace ebb::formats
