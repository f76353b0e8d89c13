// The files of a DeepSpeed checkpoint as object graphs. Internal to formats/deepspeed. What the
// engine writes and what its loader needs: docs/formats/deepspeed.md.
#pragma once

#include <vector>

#include "formats/deepspeed/emit_flats.h"

namespace formats {

struct DsOutput {  // borrows all of it
  const DsContent& what;
  const Catalog& content;
  const std::vector<DsOutFlat>& flats;
};

// Relative to the checkpoint's folder.
std::string ds_tag_folder(const DsContent& what);
// One a rank: master weights, optimizer state, groups, the loss scaler.
OutputFile ds_optimizer_file(const DsOutput& output, Rank rank);
// Stages 1 and 2: one, of rank 0; stage 3: one a rank.
OutputFile ds_model_file(const DsOutput& output, Rank rank);

}  // namespace formats
