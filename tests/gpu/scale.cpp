#include "tests/gpu/scale.h"

#include <algorithm>

namespace ebb::gpu {

std::vector<Batch> Scale::batches() const {
  std::vector<Batch> all;
  const auto add = [&](const Batch& batch) {
    if (std::ranges::find(all, batch) == all.end()) all.push_back(batch);
  };
  for (const Goal& goal : goals) add(goal.batch);
  for (const Model& model : {of_7b, stepped})
    for (const Batch& batch : model.layer()) add(batch);
  return all;
}

}  // namespace ebb::gpu
