// The files of a DeepSpeed checkpoint as object graphs. Internal to formats/deepspeed. What the
// engine writes and what its loader needs: docs/formats/deepspeed.md.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "ebb/formats/deepspeed/emit_flats.h"

namespace ebb::formats::deepspeed {

struct Output {  // borrows all of it
  const Content& what;
  const Catalog& content;
  const std::vector<OutFlat>& flats;
  std::string folder;  // "<tag>/", relative to the checkpoint's
};

// A file of one rank in the making.
class EngineFile : protected TorchFileWriter {
 public:
  EngineFile(const Output& output, Rank rank, std::string stem)
      : TorchFileWriter(output.content, std::move(stem)),
        what_(output.what),
        content_(output.content),
        flats_(output.flats),
        rank_(rank) {}

 protected:
  // What the content says under an engine's key; for the first, nothing where it says nothing.
  void known_entry(std::string_view key) {
    if (const Value* known = what_.value(key)) entry(key, *known);
  }
  void entry_or(std::string_view key, const Value& otherwise) {
    const Value* known = what_.value(key);
    entry(key, known != nullptr ? *known : otherwise);
  }

  const Content& what_;
  const Catalog& content_;
  const std::vector<OutFlat>& flats_;
  Rank rank_;
};

// A step counter the way the group's optimizer keeps it.
void pickle_steps(TorchFileWriter& file, const OutGroup& group, std::int64_t steps);
// One a rank: master weights, optimizer state, groups, the loss scaler.
OutputFile optimizer_file(const Output& output, Rank rank);
// The part of the optimizer's state that belongs to no parameter, for all stages.
OutputFile global_state_file(const Output& output);
// Stages 1 and 2: one, of rank 0; stage 3: one a rank.
OutputFile model_file(const Output& output, Rank rank);

}  // namespace ebb::formats::deepspeed
