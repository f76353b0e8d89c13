#include "ebb/formats/folders/trainer_state.h"

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
constexpr std::string_view kKey = "trainer_state";

// The numbers that JSON lacks, as our JSON has them.
std::string with_our_numbers(std::string_view json) {
  constexpr std::pair<std::string_view, std::string_view> kNumbers[] = {
      {"NaN", R"({"$float": "nan"})"},
      {"-Infinity", R"({"$float": "-inf"})"},
      {"Infinity", R"({"$float": "inf"})"}};
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

}  // namespace

Result<std::vector<ValueEntry>> read_trainer_state(const ByteSource& source) {
  EBB_TRY_ASSIGN(const ByteVector bytes, read_bytes(source, 0, source.size(), kMostBytes));
  const std::string where = compose("{}:0", source.name());
  EBB_TRY_ASSIGN(Value state, read_value_json(with_our_numbers(text_of(bytes)), where));
  if (state.kind != Value::Kind::dict)
    return Error{Code::corrupt, where + ": the state of a Trainer is an object of JSON"};
  std::vector<ValueEntry> values;
  for (auto& [key, value] : state.entries) {
    const std::vector<PathItem> path = {std::string(kKey), std::move(key.text)};
    values.push_back({joined(path), path, std::move(value)});
  }
  return values;
}

}  // namespace ebb::formats::folders
