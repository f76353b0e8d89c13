#include "ebb/formats/hdf5/naming.h"

#include <algorithm>

namespace ebb::formats::hdf5 {
namespace {

std::string joined(const std::vector<std::string>& parts, std::size_t first, std::size_t end) {
  std::string out;
  for (std::size_t i = first; i < end; ++i) (out += i == first ? "" : "/") += parts[i];
  return out;
}

}  // namespace

std::vector<std::string> parts_of(std::string_view path) {
  std::vector<std::string> parts;
  for (std::size_t at = 0; at < path.size();) {
    const std::size_t end = std::min(path.find('/', at), path.size());
    if (end > at) parts.emplace_back(path.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

std::pair<std::string, std::string> identity_of(std::string_view path) {
  const std::vector<std::string> parts = parts_of(path);
  if (parts.size() < 3 || parts.front() != "state") return {std::string(path), "tensor"};
  return {joined(parts, 1, parts.size() - 1), parts.back()};
}

std::string beside(std::string_view from, std::string_view name) {
  if (name.empty() || name.starts_with('/') || name.find('\0') != std::string_view::npos) return {};
  std::vector<std::string> folder = parts_of(from);
  if (!folder.empty()) folder.pop_back();
  for (const std::string& part : parts_of(name)) {
    if (part == ".") continue;
    if (part != "..") {
      folder.push_back(part);
    } else if (folder.empty()) {
      return {};
    } else {
      folder.pop_back();
    }
  }
  return joined(folder, 0, folder.size());
}

}  // namespace ebb::formats::hdf5
