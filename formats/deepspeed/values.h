// Everything of a DeepSpeed checkpoint that is no tensor, as values of the catalog. Their keys and
// meanings: docs/formats/deepspeed.md. Internal to formats/deepspeed.
#pragma once

#include <string>

#include "ebb/formats/deepspeed/model.h"
#include "ebb/formats/deepspeed/optimizer.h"

namespace ebb::formats::deepspeed {

// Names come in the order of the flat buffers; groups list them as the engine's own lists do.
// `world`: the ranks that a buffer is cut over.
void undo_dealing(const ModelFacts& model, std::uint32_t world, OptimizerFacts& optimizer);

bool same_settings(const GroupEntry& a, const GroupEntry& b);

// Fills step, groups, param_steps, producer and values; `catalog` knows its number of ranks.
// `groups`: as param_shapes lists them; the facts' steps belong to these.
void set_values(Catalog& catalog, const std::string& tag, const std::vector<Group>& groups,
                const ModelFacts& model, OptimizerFacts optimizer);

}  // namespace ebb::formats::deepspeed
