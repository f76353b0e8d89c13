// What is wanted of a conversion (convert.h). Values; what they point to is borrowed.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/catalog/emit.h"
#include "ebb/formats/catalog/format.h"
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

}  // namespace ebb::formats
