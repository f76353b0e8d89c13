// State dicts by hand: catalogs as describe() finds them, before their keys mean anything.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "ebb/formats/catalog/key_path.h"
#include "ebb/formats/state_dict/names.h"

namespace ebb::state_dicts {

using Path = std::vector<formats::PathItem>;
using Names = std::vector<std::pair<std::string, std::string>>;

// A described state dict of tensors at these places, each as large as its shape says.
inline Catalog state_dict(std::vector<std::pair<Path, Shape>> tensors) {
  Catalog catalog;
  for (auto& [path, shape] : tensors) {
    TensorEntry tensor{.key = formats::joined(path), .path = std::move(path), .name = {}};
    tensor.shape = std::move(shape);
    tensor.chunks = {
        Chunk{.box = formats::whole(tensor.shape), .offset = 64 * catalog.tensors.size()}};
    catalog.tensors.push_back(std::move(tensor));
  }
  return catalog;
}

inline void add_value(Catalog& catalog, Path path, Value content) {
  catalog.values.push_back({formats::joined(path), std::move(path), std::move(content)});
}

// One parameter group as torch's newer releases flatten it.
inline void add_group(Catalog& catalog, Path optimizer, Value params) {
  optimizer.insert(optimizer.end(), {"param_groups", 0});
  Path lr = optimizer;
  lr.push_back("lr");
  optimizer.push_back("params");
  add_value(catalog, std::move(lr), Value::of_real(0.1));
  add_value(catalog, std::move(optimizer), std::move(params));
}

inline Value names(std::vector<std::string> texts) {
  std::vector<Value> items;
  for (std::string& text : texts) items.push_back(Value::of_string(std::move(text)));
  return Value::of_list(std::move(items));
}

inline Names named(Catalog& catalog, const formats::PartsSaid& said = {}) {
  const auto done = formats::name_contents(catalog, said);
  EXPECT_TRUE(done) << done.error().message;
  Names all;
  for (const auto& tensor : catalog.tensors) all.emplace_back(tensor.name, tensor.state);
  return all;
}

}  // namespace ebb::state_dicts
