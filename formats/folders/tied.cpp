// Source: transformers 5.24, modeling_utils.py (_tied_weights_keys, tie_weights) and the models
// whose head is called lm_head.
#include "ebb/formats/folders/tied.h"

#include <algorithm>
#include <string>
#include <string_view>

#include "ebb/formats/folders/trainer_state.h"

namespace ebb::formats::folders {
namespace {

constexpr std::string_view kConfig = "config.json";
constexpr std::string_view kHead = "lm_head.weight";

bool is_true(const Value* value) {
  return value != nullptr && value->kind == Value::Kind::boolean && value->integer != 0;
}

// Models with several parts say it of the one that reads text.
bool says_tied(const std::vector<ValueEntry>& config) {
  return std::ranges::any_of(config, [](const ValueEntry& field) {
    if (field.key == "config.tie_word_embeddings") return is_true(&field.value);
    return field.key == "config.text_config" && is_true(field.value.find("tie_word_embeddings"));
  });
}

// Whether its head over the vocabulary is called kHead.
bool has_the_head(const std::vector<ValueEntry>& config) {
  constexpr std::string_view kClasses[] = {"ForCausalLM", "ForConditionalGeneration",
                                           "GPT2LMHeadModel"};
  const auto classes = std::ranges::find(config, "config.architectures", &ValueEntry::key);
  return classes != config.end() &&
         std::ranges::any_of(classes->value.items, [&](const Value& item) {
           return std::ranges::any_of(
               kClasses, [&](std::string_view end) { return item.text.ends_with(end); });
         });
}

bool is_embedding(std::string_view name) {
  constexpr std::string_view kNames[] = {"embed_tokens.weight", "wte.weight"};
  return std::ranges::any_of(kNames, [&](std::string_view word) {
    return name == word || (name.ends_with(word) && name[name.size() - word.size() - 1] == '.');
  });
}

}  // namespace

Result<std::optional<Value>> tied_names(const SourceTree& tree, const Catalog& catalog) {
  const std::optional<Value> kNone;
  if (tree.find(kConfig) == nullptr) return kNone;
  EBB_TRY_ASSIGN(const auto source, tree.open(kConfig));
  EBB_TRY_ASSIGN(const auto config, read_json_state(*source, "config"));
  if (!says_tied(config) || !has_the_head(config)) return kNone;
  const std::string* embedding = nullptr;
  for (const TensorEntry& tensor : catalog.tensors) {
    if (tensor.state != "param") continue;
    if (tensor.name == kHead) return kNone;
    if (!is_embedding(tensor.name)) continue;
    if (embedding != nullptr) return kNone;
    embedding = &tensor.name;
  }
  if (embedding == nullptr) return kNone;
  return std::optional(Value::of_dict({{std::string(kHead), Value::of_string(*embedding)}}));
}

}  // namespace ebb::formats::folders
