// The safetensors format: one file, several with model.safetensors.index.json, and the shards torch
// DCP's HuggingFaceStorageWriter leaves (DCP_SHARDING_INFO). docs/formats/safetensors.md.
#pragma once

#include <memory>
#include <string_view>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/catalog/emit.h"
#include "ebb/formats/catalog/resume.h"

namespace ebb::formats {

// Among the notes about what ranks wrote: whoever goes on from it has to know.
constexpr std::string_view kLastShardUnseen =
    "this format records no number of ranks: a missing last shard cannot be noticed";

bool detect_safetensors(const SourceTree& tree);

// Every header and the index are read and checked against each other and the file sizes.
Result<std::unique_ptr<Checkpoint>> describe_safetensors(std::shared_ptr<const SourceTree> tree);

// One rank: model.safetensors. Several: shard-0000R-model-00001-of-00001.safetensors each, with
// DCP_SHARDING_INFO. Params are called by name, other states by key. Data starts on a multiple of
// 4096 so that O_DIRECT can read it.
Result<EmitPlan> emit_safetensors(const EmitRequest& request);

ResumeRules safetensors_resume();

}  // namespace ebb::formats
