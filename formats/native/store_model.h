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

// Code::limit on what no manifest holds; Code::layout on two tensors of one name, state and shape.
Result<StoreModel> store_model_of(const Catalog& content);

}  // namespace ebb::formats::native
