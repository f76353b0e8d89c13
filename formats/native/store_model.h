// What a manifest says of a model, out of content from anywhere: names, groups, settings, values.
// Internal to formats/native.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/native/manifest.h"

namespace ebb::formats::native {

struct StoredTensor {
  std::uint32_t tensor = 0;  // of the content
  std::uint32_t param = 0;   // Manifest::params
  std::uint32_t state = 0;   // Manifest::states
};

struct StoreModel {
  Manifest manifest;  // without store, rank, world, generation and tiles
  std::vector<StoredTensor> stored;
  std::vector<std::string> dropped;    // as in EmitPlan
  std::vector<std::uint32_t> omitted;  // as in EmitPlan
};

// Settings of a group are text in a manifest. A number; "true" or "false"; JSON (value_json.h) when
// it begins with '[', '{' or '"' or is "null"; else the word itself.
Value setting_value(const std::string& text);
// The text that setting_value() turns into this value.
std::string setting_text(const Value& value);

// Code::limit on what no manifest holds; Code::layout on two tensors of one name, state and shape.
Result<StoreModel> store_model_of(const Catalog& content);

}  // namespace ebb::formats::native
