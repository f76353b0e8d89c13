// Convert: what of a described checkpoint goes into which format, cut how. ckpt-convert and the
// export of a pinned generation are both one call of this; write_checkpoint.h moves the bytes.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/catalog/emit.h"
#include "ebb/formats/conversion/content_view.h"
#include "ebb/formats/conversion/request.h"
#include "ebb/formats/layout/layout.h"

namespace ebb::formats {

// The content to write - a view of the source, which must outlive it - and the files to be.
struct Conversion {
  std::unique_ptr<ContentView> content;
  Policy policy = Policy::rows;  // how it is cut
  EmitPlan plan;
  // Made by edits or by the selection (weights.h, weights_alone.h); one line each.
  std::vector<std::string> changes;
  // What loading the source in Python would call beyond what frameworks write (unsafe_values.h);
  // among plan.dropped as well.
  std::vector<std::string> unsafe;
  // Wanted tensors that are not read (unread.h); among plan.dropped as well.
  std::vector<std::string> unread;
};

// How many optimizer steps each parameter has taken, as far as the checkpoint counts them by
// parameter: outside its tensors, or in a tensor "step" of one element, which is read.
Result<std::map<std::string, std::int64_t>> counted_steps(const Checkpoint& source);

// Reads the source only where step counters move from tensors to values. A format's own keys, paths
// and echoed values are kept only where source and target are the same format: elsewhere names,
// states, groups and step counters say the same and the target spells them its own way. Two formats
// of torch state dicts (DCP, torch.save) keep the nesting too.
Result<Conversion> plan_conversion(const Checkpoint& source, const ConvertRequest& request);

}  // namespace ebb::formats
