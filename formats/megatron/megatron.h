// Megatron checkpoints. "megatron": torch_dist of megatron-core 0.12 to 0.19 - a DCP directory with
// metadata.json beside it, all states in the model's own space, flat boxes of older versions
// included. "megatron-fsdp": fsdp_dtensor of Megatron-FSDP - plain DCP with Megatron's keys. Both
// with or without latest_checkpointed_iteration.txt above them. Layouts, keys, what is lost:
// docs/formats/megatron.md.
#pragma once

#include <memory>
#include <string_view>

#include "formats/catalog/catalog.h"
#include "formats/catalog/emit.h"

namespace formats {

bool detect_megatron(const SourceTree& tree);
bool detect_megatron_fsdp(const SourceTree& tree);

// Read the metadata, the common state and the sharded objects; elements only when asked for.
Result<std::unique_ptr<Checkpoint>> describe_megatron(std::shared_ptr<const SourceTree> tree);
Result<std::unique_ptr<Checkpoint>> describe_megatron_fsdp(std::shared_ptr<const SourceTree> tree);

// iter_NNNNNNN/ with one payload file a rank that has pieces, common.pt, .metadata, metadata.json;
// latest_checkpointed_iteration.txt last.
Result<EmitPlan> emit_megatron(const EmitRequest& request);
// A DCP directory; below iter_NNNNNNN/ with the tracker when it was read so.
Result<EmitPlan> emit_megatron_fsdp(const EmitRequest& request);

// The flat buckets of dp_reshardable: only the job that wrote them knows whose elements are where.
std::string_view why_bound_to_megatron(const TensorEntry& tensor);

}  // namespace formats
