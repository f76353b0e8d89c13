// PyTorch Distributed Checkpoint directories: `.metadata` (or one `__N.metadata` per rank) and the
// payload files it points into. Reads what torch 2.0 to 2.15 write; writes what torch 2.3 and newer
// load. Layout, versions and what is lost: docs/formats/dcp.md.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/catalog/emit.h"
#include "ebb/formats/catalog/resume.h"

namespace ebb::formats {

bool detect_dcp(const SourceTree& tree);
// Whether a file of that name, on top of a directory, makes it one.
bool is_of_dcp(std::string_view name);

// Reads the metadata and the values; tensors' payload files are only compared with their sizes.
// Each payload's own shape, dtype and CRC32 are checked when it is read.
Result<std::unique_ptr<Checkpoint>> describe_dcp(std::shared_ptr<const SourceTree> tree);

// The same where payload files are missing or cut off, or chunks have no entry: the index alone,
// without those chunks and without values.
Result<std::unique_ptr<Checkpoint>> describe_dcp_with_holes(std::shared_ptr<const SourceTree> tree);

// One payload file a rank, one item per piece of the layout, replicated pieces once, `.metadata` as
// the commit file. Data lies 4096-aligned in the file except for items smaller than that.
Result<EmitPlan> emit_dcp(const EmitRequest& request);

// Keys and paths of a state dict, flattened as torch does, and the names that describe_dcp() gives
// them.
void respell_for_dcp(Catalog& content);

ResumeRules dcp_resume();
// No, where parameters of an optimizer have no state, which torch's loader asks for: also of those
// that are DCP with something more.
ResumeRule without_states_rule();

}  // namespace ebb::formats

namespace ebb::formats::dcp {

// A directory as what it is, for formats that are DCP underneath.
struct Opened {
  // As describe_dcp gives it, but every tensor is (key, "tensor"), and values are mere values. Its
  // read() needs of a tensor the key and dtype, of a chunk the box's
  // extent and the place: entries put together by the caller are read as well as its own.
  std::unique_ptr<Checkpoint> checkpoint;
  // Of tensors whose tensor-parallel boxes are stored flat: their own shapes (see Index).
  std::unordered_map<std::string, Shape> flat_boxes_of;
};
Result<Opened> open(std::shared_ptr<const SourceTree> tree);

// Who wrote it, of a format that is DCP underneath: `layer` before the torch of `producer`.
std::string produced_by(std::string_view layer, const std::string& producer);

}  // namespace ebb::formats::dcp
