// trainer_state.json, where transformers' Trainer keeps its step and its log, and files like it.
// Internal to formats/folders.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ebb/formats/catalog/catalog.h"

namespace ebb::formats::folders {

// What lies on its top, a value each, below the key. Python writes NaN and Infinity into JSON,
// which has no such numbers: they are read all the same.
Result<std::vector<ValueEntry>> read_json_state(const ByteSource& source, std::string_view below);

// What Trainer fails without when it resumes, beside the step: a batch size, which it divides
// before it warns that it is another, and what its control is to begin with.
std::vector<ValueEntry> least_trainer_state();

// The other way: the fields, each at its place below "trainer_state", and which JSON cannot hold.
struct TrainerStateText {
  std::string text;
  std::vector<std::string> left;
};
TrainerStateText trainer_state_text(const std::vector<ValueEntry>& fields);

}  // namespace ebb::formats::folders
