// trainer_state.json, where transformers' Trainer keeps its step and its log. Internal to
// formats/folders.
#pragma once

#include <vector>

#include "ebb/formats/catalog/catalog.h"

namespace ebb::formats::folders {

// What lies on its top, a value each, below the key "trainer_state". Python writes NaN and Infinity
// into JSON, which has no such numbers: they are read all the same.
Result<std::vector<ValueEntry>> read_trainer_state(const ByteSource& source);

}  // namespace ebb::formats::folders
