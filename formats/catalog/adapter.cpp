#include "ebb/formats/catalog/adapter.h"

#include <string_view>

namespace ebb::formats {
namespace {

bool is_of_an_adapter(std::string_view name) {
  const bool of_base = name.find(".base_layer.") != std::string_view::npos;
  const bool in_a_model =
      name.find(".default.") != std::string_view::npos || name.ends_with(".default");
  return name.starts_with("base_model.") && !of_base && !in_a_model;
}

}  // namespace

bool is_adapter(const Catalog& catalog) {
  bool any = false;
  for (const TensorEntry& tensor : catalog.tensors) {
    if (tensor.state != "param" && tensor.state != "master" && tensor.state != "buffer") continue;
    if (!is_of_an_adapter(tensor.name)) return false;
    any = true;
  }
  return any;
}

}  // namespace ebb::formats
