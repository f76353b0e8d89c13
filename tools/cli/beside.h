// What lies beside a checkpoint, in few lines: what may be missed is named, the rest is counted.
#pragma once

#include <string>
#include <vector>

#include "ebb/formats/catalog/catalog.h"
#include "tools/cli/json.h"

namespace ebb::tools {

// Those that may hold what somebody looks for here: states, weights, checkpoints, unknown things.
std::vector<std::string> lines_of_missed(const Catalog& catalog);
// What a job keeps of its own, and what holds nothing trained, in one line each; "" for nothing.
std::string line_of_job(const Catalog& catalog);
std::string line_of_harmless(const Catalog& catalog);
// "optimizer.pt, optimizer_1/": those with an optimizer's states; "" where there are none.
std::string states_beside(const Catalog& catalog);

// A list under the key "beside".
void write_beside(JsonWriter& json, const Catalog& catalog);

}  // namespace ebb::tools
