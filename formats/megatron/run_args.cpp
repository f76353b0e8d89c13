#include "ebb/formats/megatron/run_args.h"

#include "ebb/formats/catalog/resume.h"

namespace ebb::formats::megatron {

std::string padding_note(const Catalog& catalog) {
  const std::int64_t words = run_arg(catalog, "vocab_size").value_or(0);
  const std::int64_t stored = run_arg(catalog, "padded_vocab_size").value_or(0);
  if (words <= 0 || stored <= words) return {};
  return compose("the vocabulary is padded from {} to {} rows", words, stored);
}

std::optional<std::int64_t> run_arg(const Catalog& catalog, std::string_view name) {
  const Value* args = value_at(catalog, {"args"});
  // A namespace: the class's arguments, and its attributes.
  if (args == nullptr || args->kind != Value::Kind::object || args->items.size() != 2)
    return std::nullopt;
  const Value* value = args->items[1].find(name);
  const bool whole = value != nullptr &&
                     (value->kind == Value::Kind::integer || value->kind == Value::Kind::boolean);
  return whole ? std::optional(value->integer) : std::nullopt;
}

}  // namespace ebb::formats::megatron
