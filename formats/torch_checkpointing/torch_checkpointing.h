// Checkpoints of the package torch_checkpointing, 0.1: <item>_<rank>.pt, each a torch.save file of
// what one rank has of an item, and metadata.pkl, which says how the items' tensors are cut.
// Layout, what is read and what is lost: docs/formats/torch-checkpointing.md.
#pragma once

#include <memory>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/catalog/emit.h"
#include "ebb/formats/catalog/resume.h"

namespace ebb::formats {

bool detect_torch_checkpointing(const SourceTree& tree);

// Reads metadata.pkl and the pickles of all ranks; elements only when asked for.
Result<std::unique_ptr<Checkpoint>> describe_torch_checkpointing(
    std::shared_ptr<const SourceTree> tree);
ResumeRules torch_checkpointing_resume();
// A model that lies at the top becomes the item "model".
void respell_for_torch_checkpointing(Catalog& content);
// Every item as a file for each rank; tensors cut by rows as FSDP2 cuts them, or whole at each.
Result<EmitPlan> emit_torch_checkpointing(const EmitRequest& request);

}  // namespace ebb::formats
