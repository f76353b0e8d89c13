// torch.save files as a format of their own: one .pt, .pth or .bin file, alone or the only one of
// its kind in a directory. Keys, names and states follow the nesting of the saved object; layout,
// what is read and what is lost: docs/formats/torch.md.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/catalog/emit.h"
#include "ebb/formats/catalog/resume.h"

namespace ebb::formats {

bool detect_torch(const SourceTree& tree);

// Reads the pickle and the places of the storages; elements only when asked for, a part at a time.
Result<std::unique_ptr<Checkpoint>> describe_torch(std::shared_ptr<const SourceTree> tree);
// The files of a folder that are a checkpoint each; empty where it is one checkpoint, or where each
// is a rank's.
std::vector<std::string> torch_saves_in(const std::shared_ptr<const SourceTree>& tree);
ResumeRules torch_resume();
// Of files of ranks: damaged replicas, which nobody reads.
std::vector<Error> torch_problems(const std::shared_ptr<const SourceTree>& tree,
                                  const Catalog& catalog);

// Who loads a file: torch.load(weights_only=True) alone, which takes no array of numpy's, or a job
// that allows them.
enum class Loader : std::uint8_t { weights_only, with_arrays };

// One file, checkpoint.pt; how it is cut does not matter. For weights_only arrays become tensors,
// which is noted. Code::layout when two entries belong at one place of the nesting.
Result<EmitPlan> emit_torch(const EmitRequest& request, Loader loader = Loader::weights_only);

}  // namespace ebb::formats
