#include "ebb/formats/catalog/key_path.h"

namespace ebb::formats {

std::string joined(const std::vector<PathItem>& path) {
  constexpr std::size_t kNumber = 20;  // digits at most
  std::size_t room = path.size();
  for (const PathItem& item : path) {
    const auto* text = std::get_if<std::string>(&item);
    room += text == nullptr ? kNumber : text->size();
  }
  std::string key;
  key.reserve(room);
  for (std::size_t i = 0; i < path.size(); ++i) {
    if (i > 0) key += '.';
    if (const auto* text = std::get_if<std::string>(&path[i]))
      key += *text;
    else
      key += std::to_string(std::get<std::int64_t>(path[i]));
  }
  return key;
}

bool is_flattened_key(std::string_view key) {
  const std::string_view word = key.substr(key.rfind('.') + 1);
  return word == "_flat_param" || word == "flat_param";
}

}  // namespace ebb::formats
