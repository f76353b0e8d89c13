#include "tools/cli/beside.h"

#include <algorithm>
#include <span>

#include "ebb/formats/catalog/known_files.h"
#include "ebb/formats/core/json_text.h"
#include "tools/cli/text.h"

namespace ebb::tools {

namespace {

using formats::BesideEntry;
using Role = BesideEntry::Role;

bool is_known(const BesideEntry& entry) {
  return entry.role == Role::job || entry.role == Role::harmless;
}

std::string named(const BesideEntry& entry) {
  std::string out = printable(entry.path, 60);
  if (entry.count > 1) out += compose(" and {} alike", count_text(entry.count - 1));
  return out;
}

// The first ones by name, and how many more.
std::string in_short(const std::vector<std::string>& names, std::size_t most) {
  const std::size_t shown = std::min(names.size(), most);
  std::string out = joined(std::span(names).first(shown));
  if (shown < names.size()) out += compose(" and {} more", count_text(names.size() - shown));
  return out;
}

std::vector<std::string> names_of(const Catalog& catalog, Role role) {
  std::vector<std::string> names;
  for (const BesideEntry& entry : catalog.beside)
    if (entry.role == role) names.push_back(named(entry));
  return names;
}

}  // namespace

std::vector<std::string> lines_of_missed(const Catalog& catalog) {
  constexpr std::size_t kShown = 6;
  std::vector<const BesideEntry*> missed;
  for (const BesideEntry& entry : catalog.beside)
    if (!is_known(entry)) missed.push_back(&entry);
  std::ranges::stable_sort(missed, std::greater<>{}, &BesideEntry::holds_states);
  std::vector<std::string> lines;
  for (std::size_t i = 0; i < std::min(missed.size(), kShown); ++i) {
    const BesideEntry& entry = *missed[i];
    lines.push_back(named(entry) + ": " + (entry.what.empty() ? "not known" : entry.what));
  }
  if (missed.size() > kShown)
    lines.push_back(compose("and {} more", count_text(missed.size() - kShown)));
  return lines;
}

std::string line_of_job(const Catalog& catalog) {
  const auto names = names_of(catalog, Role::job);
  return names.empty() ? "" : in_short(names, 4) + ": what the job keeps of its own";
}

std::string line_of_harmless(const Catalog& catalog) {
  const auto names = names_of(catalog, Role::harmless);
  return names.empty() ? "" : in_short(names, 3) + ": nothing trained";
}

std::string states_beside(const Catalog& catalog) {
  std::vector<std::string> names;
  for (const BesideEntry& entry : catalog.beside)
    if (entry.holds_states) names.push_back(named(entry));
  return in_short(names, 3);
}

void write_beside(JsonWriter& json, const Catalog& catalog) {
  json.key("beside").open_list();
  for (const BesideEntry& entry : catalog.beside) {
    json.open_object().put("path", entry.path).put("count", entry.count);
    json.put("role", formats::name_of(entry.role)).put("what", entry.what);
    json.put("holds_states", entry.holds_states).close_object();
  }
  json.close_list();
}

}  // namespace ebb::tools
