#include "ebb/formats/folders/trainer_state.h"

#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "ebb/formats/catalog/key_path.h"
#include "ebb/formats/catalog/value_json.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/units.h"

namespace ebb::formats::folders {
namespace {

constexpr std::uint64_t kMostBytes = 64 * MiB;

// The numbers that JSON lacks, as Python and our JSON have them.
constexpr std::pair<std::string_view, std::string_view> kNumbers[] = {
    {"NaN", R"({"$float": "nan"})"},
    {"-Infinity", R"({"$float": "-inf"})"},
    {"Infinity", R"({"$float": "inf"})"}};

std::string with_our_numbers(std::string_view json) {
  std::string out;
  bool in_text = false;
  for (std::size_t at = 0; at < json.size();) {
    std::size_t taken = 1;
    std::string_view put = json.substr(at, 1);
    if (in_text && json[at] == '\\')
      put = json.substr(at, taken = std::min<std::size_t>(2, json.size() - at));
    else if (json[at] == '"')
      in_text = !in_text;
    else if (!in_text)
      for (const auto& [theirs, ours] : kNumbers)
        if (json.substr(at).starts_with(theirs)) {
          taken = theirs.size();
          put = ours;
          break;
        }
    out += put;
    at += taken;
  }
  return out;
}

// No text of a document has such quotes in it.
std::string with_their_numbers(std::string json) {
  for (const auto& [theirs, ours] : kNumbers)
    for (std::size_t at = json.find(ours); at != std::string::npos; at = json.find(ours, at))
      json.replace(at, ours.size(), theirs);
  return json;
}

// nullopt: it has something that JSON has no form for.
std::optional<Value> as_json_has_it(const Value& value) {
  Value out = value;
  switch (value.kind) {
    case Value::Kind::none:
    case Value::Kind::boolean:
    case Value::Kind::integer:
    case Value::Kind::real:
    case Value::Kind::string:
      return out;
    case Value::Kind::tuple:
      out.kind = Value::Kind::list;
      break;
    case Value::Kind::list:
    case Value::Kind::dict:
      break;
    default:
      return std::nullopt;
  }
  for (Value& item : out.items) {
    auto its = as_json_has_it(item);
    if (!its) return std::nullopt;
    item = std::move(*its);
  }
  for (auto& [key, item] : out.entries) {
    auto its = as_json_has_it(item);
    if (!its || key.kind != Value::Kind::string || key.text.starts_with('$')) return std::nullopt;
    item = std::move(*its);
  }
  return out;
}

}  // namespace

std::vector<ValueEntry> least_trainer_state() {
  Value control = Value::of_dict({{"args", Value::of_dict()}, {"attributes", Value::of_dict()}});
  return {{"stateful_callbacks", {}, Value::of_dict({{"TrainerControl", std::move(control)}})},
          {"train_batch_size", {}, Value::of_int(1)}};
}

TrainerStateText trainer_state_text(const std::vector<ValueEntry>& fields) {
  TrainerStateText state;
  Value all = Value::of_dict();
  for (const ValueEntry& field : fields) {
    auto value = as_json_has_it(field.value);
    if (value)
      all.add(field.key, *std::move(value));
    else
      state.left.push_back(field.key);
  }
  state.text = with_their_numbers(to_json(all)) + "\n";
  return state;
}

Result<std::vector<ValueEntry>> read_json_state(const ByteSource& source, std::string_view below) {
  EBB_TRY_ASSIGN(const ByteVector bytes, read_bytes(source, 0, source.size(), kMostBytes));
  const std::string where = compose("{}:0", source.name());
  EBB_TRY_ASSIGN(Value state, read_value_json(with_our_numbers(text_of(bytes)), where));
  if (state.kind != Value::Kind::dict)
    return Error{Code::corrupt, where + ": the state of a job is an object of JSON"};
  std::vector<ValueEntry> values;
  for (auto& [key, value] : state.entries) {
    const std::vector<PathItem> path = {std::string(below), std::move(key.text)};
    values.push_back({joined(path), path, std::move(value)});
  }
  return values;
}

}  // namespace ebb::formats::folders
