// Megatron checkpoints. "megatron": torch_dist of megatron-core 0.12 to 0.19 - a DCP directory with
// metadata.json beside it, all states in the model's own space, flat boxes of older versions
// included. "megatron-fsdp": fsdp_dtensor of Megatron-FSDP - plain DCP with Megatron's keys.
// "megatron-torch": --ckpt-format torch, files of each rank, read alone. All with or without
// latest_checkpointed_iteration.txt above them. Layouts, keys, what is lost:
// docs/formats/megatron.md.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/catalog/common_names.h"
#include "ebb/formats/catalog/emit.h"
#include "ebb/formats/catalog/resume.h"

namespace ebb::formats {

bool detect_megatron(const SourceTree& tree);
bool detect_megatron_fsdp(const SourceTree& tree);
bool detect_megatron_ranks(const SourceTree& tree);

// Read the metadata, the common state and the sharded objects; elements only when asked for.
Result<std::unique_ptr<Checkpoint>> describe_megatron(std::shared_ptr<const SourceTree> tree);
// The index alone (describe_dcp_with_holes), under Megatron's names; flat boxes stay flat.
Result<std::unique_ptr<Checkpoint>> describe_megatron_with_holes(
    std::shared_ptr<const SourceTree> tree);
Result<std::unique_ptr<Checkpoint>> describe_megatron_fsdp(std::shared_ptr<const SourceTree> tree);
Result<std::unique_ptr<Checkpoint>> describe_megatron_ranks(std::shared_ptr<const SourceTree> tree);

// iter_NNNNNNN/ (or release/) with common.pt, one payload file for each rank that has pieces, and
// after them .metadata, metadata.json; latest_checkpointed_iteration.txt last.
Result<EmitPlan> emit_megatron(const EmitRequest& request);
// A DCP directory, without tracker and iteration folder however it was read: `.metadata` last.
Result<EmitPlan> emit_megatron_fsdp(const EmitRequest& request);

ResumeRules megatron_resume();
ResumeRules megatron_fsdp_resume();
ResumeRules megatron_ranks_resume();

// What --verify finds in either beside holes and damaged elements: files that are not what
// integrity.json says, missing sharded objects, parts of two saves.
std::vector<Error> megatron_problems(const std::shared_ptr<const SourceTree>& tree,
                                     const Catalog& catalog);

// The same of files of each rank: replicas that are damaged, parts of two saves.
std::vector<Error> megatron_rank_problems(const std::shared_ptr<const SourceTree>& tree,
                                          const Catalog& catalog);

// fsdp_dtensor's model keys may have a wrapper's "module." in front that its optimizer's keys have
// not: without it, where that is so.
CommonNames megatron_fsdp_names(const Catalog& catalog);

// The flat buckets of dp_reshardable: only the job that wrote them knows whose elements are where.
std::string_view why_bound_to_megatron(const TensorEntry& tensor);

}  // namespace ebb::formats
