#include "ebb/formats/megatron/rank_names.h"

#include <algorithm>
#include <iterator>

#include "ebb/formats/core/number_text.h"

namespace ebb::formats::megatron {
namespace {

constexpr std::string_view kLayers = "layers.";

// Modules by their names; what stands before the dot is the module's parent.
constexpr std::string_view kByRows[] = {"word_embeddings",
                                        "word_embeddings_for_head",
                                        "output_layer",
                                        "linear_qkv",
                                        "linear_fc1",
                                        "linear_q",
                                        "linear_kv",
                                        "linear_q_proj",
                                        "linear_q_up_proj",
                                        "linear_kv_up_proj",
                                        "eh_proj",
                                        "query_key_value",
                                        "query",
                                        "key_value",
                                        "dense_h_to_4h"};
constexpr std::string_view kByColumns[] = {"linear_proj", "linear_fc2", "dense_4h_to_h"};
constexpr std::string_view kAlike[] = {
    "position_embeddings", "tokentype_embeddings", "router",
    "linear_q_down_proj",  "linear_kv_down_proj",  "linear_qkv_down_proj"};

struct FirstAndSecond {
  std::string_view first, second;
};
constexpr FirstAndSecond kPairs[] = {{"linear_fc1", "linear_fc2"},
                                     {"dense_h_to_4h", "dense_4h_to_h"}};

// The key without its last word, and that word.
struct Split {
  std::string_view above, last;
};
Split split(std::string_view key) {
  const std::size_t dot = key.rfind('.');
  if (dot == std::string_view::npos) return {{}, key};
  return {key.substr(0, dot), key.substr(dot + 1)};
}

template <typename List>
bool is_among(const List& list, std::string_view word) {
  return std::ranges::find(list, word) != std::end(list);
}

}  // namespace

std::optional<LayerKey> layer_key(std::string_view key) {
  for (std::size_t at = key.find(kLayers); at != std::string_view::npos;
       at = key.find(kLayers, at + 1)) {
    if (at > 0 && key[at - 1] != '.') continue;
    const std::size_t first = at + kLayers.size();
    const std::size_t dot = key.find('.', first);
    if (dot == std::string_view::npos) return std::nullopt;
    if (const auto number = parse_number<std::uint32_t>(key.substr(first, dot - first)))
      return LayerKey{key.substr(0, first), *number, key.substr(dot + 1)};
  }
  return std::nullopt;
}

Cut cut_of(std::string_view key) {
  const auto [module, parameter] = split(key);
  const auto [parent, name] = split(module);
  if (parameter == "layer_norm_weight" || parameter == "layer_norm_bias") return Cut::none;
  if (parameter == "softmax_offset") return Cut::rows;
  if (parameter != "weight" && parameter != "bias") return Cut::unknown;
  if (name.find("norm") != std::string_view::npos || is_among(kAlike, name)) return Cut::none;
  if (is_among(kByRows, name)) return Cut::rows;
  // Other modules called "dense" are not cut.
  const bool attention = name == "dense" && split(parent).last.ends_with("attention");
  if (!attention && !is_among(kByColumns, name)) return Cut::unknown;
  return parameter == "weight" ? Cut::columns : Cut::none;
}

std::string second_weight_of(std::string_view key) {
  const auto [module, parameter] = split(key);
  const auto [parent, name] = split(module);
  for (const auto& [first, second] : kPairs)
    if (name == first && (parameter == "weight" || parameter == "bias"))
      return std::string(parent).append(".").append(second).append(".weight");
  return {};
}

std::string fused_norm_name(std::string_view rest) {
  constexpr FirstAndSecond kNorms[] = {
      {"input_layernorm.", "self_attention.linear_qkv.layer_norm_"},
      {"pre_mlp_layernorm.", "mlp.linear_fc1.layer_norm_"}};
  for (const auto& [apart, fused] : kNorms)
    if (rest.starts_with(apart)) return std::string(fused).append(rest.substr(apart.size()));
  return std::string(rest);
}

bool is_of_expert(std::string_view key) { return key.find(".experts.") != std::string_view::npos; }

bool is_extra_state(std::string_view key) { return split(key).last == "_extra_state"; }

}  // namespace ebb::formats::megatron
