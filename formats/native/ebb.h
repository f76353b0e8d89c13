// The format "ebb": a swap store, or the swap directory that holds one, as a checkpoint.
// docs/formats/native.md.
#pragma once

#include <cstdint>
#include <memory>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/catalog/emit.h"
#include "ebb/formats/catalog/resume.h"

namespace ebb::formats {

bool detect_ebb(const SourceTree& tree);

// The newest generation valid on all ranks. Code::incomplete names the rank folder that is missing.
Result<std::unique_ptr<Checkpoint>> describe_ebb(std::shared_ptr<const SourceTree> tree);

// That generation and no other: exports of a pinned one while training goes on.
Result<std::unique_ptr<Checkpoint>> describe_ebb_generation(std::shared_ptr<const SourceTree> tree,
                                                            std::uint64_t generation);

// A swap directory with one store of one committed generation, which the engine takes over like one
// of another number of ranks. Two slots a tile; the store's name follows from the content, so that
// the same content gives the same bytes.
Result<EmitPlan> emit_ebb(const EmitRequest& request);

ResumeRules ebb_resume();

// Content on its way to another format: settings as torch.optim's Muon and AdamW have them, and a
// step count for each of AdamW's parameters, which torch keeps one by one.
void say_as_torch(Catalog& content);

}  // namespace ebb::formats
