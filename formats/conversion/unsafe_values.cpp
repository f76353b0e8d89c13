#include "ebb/formats/conversion/unsafe_values.h"

#include <algorithm>

#include "ebb/formats/core/json_text.h"
#include "ebb/formats/pickle/known_globals.h"

namespace ebb::formats {
namespace {

// True when the value as a whole has to go.
bool prune(Value& value) {
  if (unsafe_part(value).empty()) return false;
  if (value.kind == Value::Kind::object && value.items.empty()) return true;
  for (Value& item : value.items)
    if (prune(item)) item = Value();
  std::erase_if(value.entries, [](auto& entry) {
    const bool key = prune(entry.first);
    return prune(entry.second) || key;
  });
  return !unsafe_part(value).empty();
}

}  // namespace

std::vector<std::string> leave_unsafe(Catalog& content) {
  std::vector<std::string> lines;
  const auto leaves = [&](const std::string& what, Value& value) {
    const std::string name(unsafe_part(value));
    if (!name.empty() && !what.empty())
      lines.push_back(what + ": loading it would have Python call " + json_string(name));
    return prune(value);
  };
  std::erase_if(content.values, [&](ValueEntry& entry) {
    return leaves(entry.echoed ? "" : "value " + json_string(entry.key), entry.value);
  });
  for (std::size_t i = 0; i < content.groups.size(); ++i)
    std::erase_if(content.groups[i].settings, [&](auto& setting) {
      return leaves(compose("setting {} of parameter group {}", json_string(setting.first), i),
                    setting.second);
    });
  return lines;
}

}  // namespace ebb::formats
