// The files of a DeepSpeed checkpoint as object graphs. Internal to formats/deepspeed. What the
// engine writes and what its loader needs: docs/formats/deepspeed.md.
#pragma once

#include <vector>

#include "ebb/formats/deepspeed/emit_flats.h"

namespace ebb::formats::deepspeed {

struct Output {  // borrows all of it
  const Content& what;
  const Catalog& content;
  const std::vector<OutFlat>& flats;
  std::string folder;  // "<tag>/", relative to the checkpoint's
};

// Says which tensors are stored in another dtype than the content's, and only so.
void note_dtypes(const Catalog& content, EmitPlan& plan);

std::string written_tag(const Content& what);
// `latest` or `latest_universal`: the name of the folder, which loaders read first.
OutputFile latest_file(std::string name, std::string_view tag);
// A step counter the way the group's optimizer keeps it.
void pickle_steps(TorchFileWriter& file, const OutGroup& group, std::int64_t steps);
// One a rank: master weights, optimizer state, groups, the loss scaler.
OutputFile optimizer_file(const Output& output, Rank rank);
// The part of the optimizer's state that belongs to no parameter, for all stages.
OutputFile global_state_file(const Output& output);
// Stages 1 and 2: one, of rank 0; stage 3: one a rank.
OutputFile model_file(const Output& output, Rank rank);

}  // namespace ebb::formats::deepspeed
