// Convert: what of a described checkpoint goes into which format, cut how. ckpt-convert and the
// export of a pinned generation are both one call of this; write_checkpoint.h moves the bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/catalog/emit.h"
#include "ebb/formats/catalog/format.h"
#include "ebb/formats/conversion/content_view.h"
#include "ebb/formats/conversion/edits.h"
#include "ebb/formats/conversion/param_order.h"
#include "ebb/formats/layout/layout.h"

namespace ebb::formats {

// weights: what the model's load_state_dict takes (weights.h), and nothing else.
enum class Taking : std::uint8_t { content, weights };

// Whether states may go into what a job resumes from under names that only the order of the model's
// parameters tells (NamedBy::order).
enum class NamesByOrder : std::uint8_t { refused, taken };

struct ConvertRequest {
  const Format& from;  // the source's (registry.h: format_of)
  const Format& to;
  Taking taking = Taking::content;
  std::uint32_t world = 1;  // ranks the result is for
  // Whole tensors, spread by size; nullopt: as the format does.
  std::optional<Policy> policy = Policy::layer_wise;
  std::function<bool(const TensorEntry&)> wanted = nullptr;  // null: everything
  std::optional<std::uint64_t> file_bytes = std::nullopt;    // EmitRequest's; unset: no limit
  const Edits* edits = nullptr;                              // null: nothing is changed
  std::optional<Compression> compression = std::nullopt;     // where the format packs
  NamesByOrder names_by_order = NamesByOrder::refused;
  const SaidOrder* order = nullptr;  // null: as the source has it
};

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
