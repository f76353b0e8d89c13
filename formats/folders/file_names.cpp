#include "ebb/formats/folders/file_names.h"

#include <algorithm>
#include <string>

#include "ebb/formats/core/number_text.h"
#include "ebb/formats/dcp/dcp.h"

namespace ebb::formats::folders {
namespace {

template <typename Is>
bool has_in_folder(const SourceTree& tree, std::string_view folder, Is is) {
  const std::string inside = std::string(folder) + "/";
  const auto& all = tree.entries();
  for (auto at = std::ranges::lower_bound(all, inside, {}, &SourceTree::Entry::name);
       at != all.end() && at->name.starts_with(inside); ++at)
    if (is(std::string_view(at->name).substr(inside.size()))) return true;
  return false;
}

}  // namespace

bool on_top(std::string_view name) { return name.find('/') == std::string_view::npos; }

std::optional<std::string_view> between(std::string_view name, std::string_view begin,
                                        std::string_view end) {
  if (name.size() < begin.size() + end.size() || !name.starts_with(begin) || !name.ends_with(end))
    return std::nullopt;
  return name.substr(begin.size(), name.size() - begin.size() - end.size());
}

std::optional<std::uint32_t> number_between(std::string_view name, std::string_view begin,
                                            std::string_view end) {
  const auto digits = between(name, begin, end);
  if (!digits || digits->size() > 9) return std::nullopt;
  return parse_number<std::uint32_t>(*digits);
}

std::string RankFiles::of(std::size_t rank) const {
  return std::string(begin).append(std::to_string(rank)).append(end);
}

bool holds_dcp(const SourceTree& tree, std::string_view folder) {
  return has_in_folder(tree, folder, is_of_dcp);
}

bool holds_safetensors(const SourceTree& tree, std::string_view folder) {
  return has_in_folder(tree, folder, [](std::string_view name) {
    return on_top(name) && name.ends_with(".safetensors");
  });
}

}  // namespace ebb::formats::folders
