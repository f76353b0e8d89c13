// Small tensors of whole numbers that belong to no parameter - a trainer's counters - as values,
// for formats that have no other place for them. Internal to formats/conversion.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/conversion/content_view.h"

namespace ebb::formats {

// Which of these tensors of the content are such.
std::vector<std::uint32_t> small_numbers(const Catalog& content,
                                         std::span<const std::uint32_t> tensors);

// The view's content with those of its tensors as values under their names. `made_of`: the view's.
Result<Catalog> with_values(const ContentView& view, const std::vector<std::uint32_t>& tensors,
                            std::vector<MadeOf>& made_of);

// The other way, for content that enters a state dict: values that its parts list as tensors.
void move_to_tensors(Catalog& content, std::vector<MadeOf>& made_of);

}  // namespace ebb::formats
