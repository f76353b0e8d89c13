#include "ebb/formats/torch_save/rank_files.h"

#include <algorithm>

#include "ebb/formats/catalog/known_files.h"
#include "ebb/formats/core/compose.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/number_text.h"
#include "ebb/formats/torch_save/open_file.h"

namespace ebb::formats::torch_save {
namespace {

std::string listed(std::span<const RankFamily> families) {
  std::string text;
  for (const RankFamily& family : families)
    text += (text.empty() ? "" : "; ") + family_text(family.name, family.files.size());
  return text;
}

using Families = std::map<std::string, RankFamily>;

// Those of models before those of their optimizers.
std::vector<RankFamily> in_order(Families families) {
  std::vector<RankFamily> all;
  for (auto& [name, family] : families) all.push_back(std::move(family));
  std::ranges::stable_partition(all,
                                [](const RankFamily& family) { return !family.is_of_states(); });
  return all;
}

// [first, end) of each run of digits.
std::vector<std::pair<std::size_t, std::size_t>> numbers_in(std::string_view name) {
  constexpr std::string_view kDigits = "0123456789";
  std::vector<std::pair<std::size_t, std::size_t>> numbers;
  for (std::size_t at = name.find_first_of(kDigits); at != std::string_view::npos;) {
    const std::size_t end = std::min(name.find_first_not_of(kDigits, at), name.size());
    numbers.emplace_back(at, end);
    at = name.find_first_of(kDigits, end);
  }
  return numbers;
}

// Of names that differ in numbers alone; nullopt where those are not one number of each.
std::optional<RankFamily> by_one_number(const std::vector<std::string>& names) {
  const std::string_view first = names.front();
  const auto places = numbers_in(first);
  std::optional<std::size_t> varying;
  for (const std::string& name : names) {
    const auto its = numbers_in(name);
    for (std::size_t i = 0; i < its.size(); ++i) {
      const std::string_view number(name.data() + its[i].first, its[i].second - its[i].first);
      if (number == first.substr(places[i].first, places[i].second - places[i].first)) continue;
      if (varying.value_or(i) != i) return std::nullopt;
      varying = i;
    }
  }
  if (!varying) return std::nullopt;
  const auto [begin, end] = places[*varying];
  RankFamily family;
  family.name.family = std::string(first.substr(0, begin)).append("*").append(first.substr(end));
  family.name.number = first.substr(begin, end - begin);
  for (const std::string& name : names) {
    const auto [from, to] = numbers_in(name)[*varying];
    const auto rank = parse_number<std::uint32_t>(std::string_view(name).substr(from, to - from));
    if (!rank || *rank >= kMostRanks || !family.files.emplace(*rank, name).second)
      return std::nullopt;
  }
  return family;
}

}  // namespace

bool RankFamily::is_of_states() const { return names_an_optimizer(name.family); }

std::string RankFamily::file_of(std::uint32_t rank) const {
  if (const auto known = files.find(rank); known != files.end()) return known->second;
  if (const auto known = absent.find(rank); known != absent.end()) return known->second;
  const std::size_t star = name.family.find('*');
  const std::size_t digits = name.number.starts_with('0') ? name.number.size() : 1;
  return name.family.substr(0, star) + zero_padded(rank, digits) + name.family.substr(star + 1);
}

std::vector<RankFamily> rank_families(const SourceTree& tree, std::span<const std::string> names) {
  Families families;
  for (const std::string& name : names) {
    if (!rank_of_file(name)) continue;
    const auto part = part_name(name);
    families.try_emplace(part->family, RankFamily{*part, {}});
  }
  for (const SourceTree::Entry& entry : tree.entries()) {
    const auto rank = rank_of_file(entry.name);
    if (!rank || entry.name.find('/') != std::string::npos) continue;
    const auto known = families.find(part_name(entry.name)->family);
    if (known != families.end()) known->second.files.emplace(*rank, entry.name);
  }
  return in_order(std::move(families));
}

std::vector<RankFamily> numbered_families(std::span<const std::string> names) {
  std::map<std::string, std::vector<std::string>> alike;
  for (const std::string& name : names) alike[without_numbers(name)].push_back(name);
  Families families;
  for (const auto& [pattern, its] : alike) {
    auto family = by_one_number(its);
    if (!family) return {};
    families.emplace(pattern, std::move(*family));
  }
  return in_order(std::move(families));
}

bool are_one_save(std::span<const RankFamily> families) {
  if (families.size() == 1) return true;
  return families.size() == 2 && !families[0].is_of_states() && families[1].is_of_states() &&
         families[0].name.parts == families[1].name.parts;
}

Result<> check_one_save(const SourceTree& tree, std::span<const RankFamily> families) {
  if (are_one_save(families)) return {};
  return Error{
      Code::unsupported,
      compose("{}: files of ranks of more than one save: {}", tree.root(), listed(families)),
      "give those of one save a folder of their own; links will do: ln -s"};
}

}  // namespace ebb::formats::torch_save
