// The model files of a universal checkpoint: converters copy those of every rank of tensor and
// pipeline parallelism, and each lists the shapes of its own parameters. Internal to
// formats/deepspeed.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "ebb/formats/deepspeed/model.h"
#include "ebb/formats/deepspeed/names.h"

namespace ebb::formats::deepspeed {

struct UniversalModels {
  // Of model-parallel rank 0: one file for all data-parallel ranks (stages 1 and 2), as rank 0, or
  // one a rank (stage 3). Where both kinds are, the first says everything.
  std::map<std::uint32_t, std::string> first;
  bool one_for_all = false;
  std::vector<std::string> others;  // of model-parallel ranks 1, 2, ...: one file each
};
// `folder`: "" or "<tag>/".
Result<UniversalModels> find_universal_models(const SourceTree& tree, const std::string& folder);

// How many ranks of tensor and pipeline parallelism a model file tells of.
Result<> check_model_ranks(const UniversalModels& models, const File& first, const SourceTree& tree,
                           const std::string& folder);

// Adds what another model-parallel rank lists: group by group, each parameter once. Pipeline stages
// list parameters of their own; tensor-parallel ranks the same ones, each with its part's shape.
void join_shapes(std::vector<Group>& groups, std::vector<Group> more);

// The tensors of a tensor-parallel rank's model file that no master is of: buffers and frozen
// parameters. Whether they are parts or copies is recorded nowhere. `known` grows by their names.
void add_unread_parts(const PickleGraph& graph, std::set<std::string>& known, Catalog& catalog);

}  // namespace ebb::formats::deepspeed
