// What the names in a model of transformer layers tell of it: in which layer a parameter is, how
// tensor parallelism cuts it, how torch_dist calls it. Pure. Sources: megatron-core 0.19.2
// (tensor_parallel/layers.py, models/gpt/gpt_layer_specs.py), Megatron-LM's older models. Internal
// to formats/megatron.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace ebb::formats::megatron {

// "decoder.layers.3.mlp.linear_fc1.weight": the list "decoder.layers.", number 3 in it, the rest.
struct LayerKey {
  std::string_view list;
  std::uint64_t number = 0;
  std::string_view rest;
};
std::optional<LayerKey> layer_key(std::string_view key);

// What tensor-parallel ranks have of a parameter.
enum class Cut : std::uint8_t {
  none,     // the same
  rows,     // parts of dimension 0
  columns,  // parts of dimension 1
  unknown,  // the name does not tell
};
Cut cut_of(std::string_view key);

// The weight that takes what a layer's first one gives: "...mlp.linear_fc2.weight" of
// "...mlp.linear_fc1.bias". "": the key is of no such layer. A gated one has two halves, of which
// each rank has a part, and twice the rows that the second has columns.
std::string second_weight_of(std::string_view key);

// torch_dist calls the norms of layers whose module does not fuse them as if it did: "rest" of a
// LayerKey, in those words.
std::string fused_norm_name(std::string_view rest);

// An expert's, of which ranks of expert parallelism have different ones.
bool is_of_expert(std::string_view key);
// What a module keeps of its own, no parameter.
bool is_extra_state(std::string_view key);

}  // namespace ebb::formats::megatron
