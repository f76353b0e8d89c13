// Tensors of a few elements that are numbers to whoever loads them: learning rates that a compiled
// step can change, counters.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ebb/formats/catalog/catalog.h"

namespace ebb::formats {

// Few enough elements, of plain numbers, stored in one piece.
bool is_small(const TensorEntry& tensor);

// The steps of its parameter, of a tensor that counts them; nullopt of others.
Result<std::optional<double>> steps_counted(const Checkpoint& checkpoint,
                                            const TensorEntry& tensor);

// Whether it lies among the settings of a parameter group. Of described state dicts.
bool is_setting(const TensorEntry& tensor);

// Settings of groups that are tensors, or of which a list's items are, by name: the narrowest dtype
// of all groups.
std::map<std::string, DType> settings_in_tensors(const Catalog& catalog);

// Settings and step counters of a whole run that are tensors, as values at their places; tensors in
// a list are one value. What cannot be read is left out. Reads them.
std::vector<ValueEntry> values_in_tensors(const Checkpoint& checkpoint);

}  // namespace ebb::formats
