#include "ebb/libswap/store/alike.h"

#include <algorithm>
#include <utility>

#include "ebb/formats/core/digest.h"

namespace ebb::libswap {
namespace {

std::int64_t digest_of(std::span<const Setting> settings) {
  formats::Digest digest;
  for (const Setting& setting : settings) {
    digest.add(setting.name);
    digest.add(setting.value);
  }
  return static_cast<std::int64_t>(digest.value() >> 2);  // agree() takes it with either sign
}

constexpr std::size_t kMostValue = 100;  // bytes of a value in a message
constexpr std::size_t kMostNamed = 8;    // values, and ranks of each

std::string ranks_text(const std::vector<std::size_t>& ranks) {
  std::string text = ranks.size() == 1 ? "rank" : "ranks";
  for (std::size_t i = 0; i < std::min(ranks.size(), kMostNamed); ++i)
    text += compose("{}{}", i == 0 ? " " : ", ", ranks[i]);
  if (ranks.size() > kMostNamed) text += compose(" and {} more", ranks.size() - kMostNamed);
  return text;
}

// "0.95 on ranks 0, 2; 0.5 on rank 1"; the same on every rank.
Result<std::string> who_has_what(Ranks& ranks, const std::string& mine) {
  EBB_TRY_ASSIGN(const auto said,
                 gather(ranks, formats::view_of(mine).first(std::min(mine.size(), kMostValue))));
  std::vector<std::pair<std::string_view, std::vector<std::size_t>>> values;
  for (std::size_t rank = 0; rank < said.size(); ++rank) {
    const std::string_view value = formats::text_of(said[rank]);
    auto known = std::ranges::find(values, value, [](const auto& one) { return one.first; });
    if (known == values.end()) known = values.insert(known, {value, {}});
    known->second.push_back(rank);
  }
  std::string text;
  for (std::size_t i = 0; i < std::min(values.size(), kMostNamed); ++i)
    text +=
        compose("{}{} on {}", i == 0 ? "" : "; ", values[i].first, ranks_text(values[i].second));
  if (values.size() > kMostNamed) text += compose("; and {} more", values.size() - kMostNamed);
  return text;
}

Result<bool> equal_everywhere(Ranks& ranks, std::int64_t mine) {
  EBB_TRY_ASSIGN(const std::int64_t lowest, ranks.agree(mine));
  EBB_TRY_ASSIGN(const std::int64_t highest, ranks.agree(-mine));
  return lowest == -highest;
}

}  // namespace

Result<> same_everywhere(Ranks& ranks, std::span<const Setting> settings) {
  EBB_TRY_ASSIGN(const bool same, equal_everywhere(ranks, digest_of(settings)));
  if (same) return {};
  // Counts come first in a list, so lists of different lengths differ before one of them ends.
  EBB_TRY_ASSIGN(const std::int64_t count, ranks.agree(static_cast<std::int64_t>(settings.size())));
  for (std::size_t i = 0; i < static_cast<std::size_t>(count); ++i) {
    EBB_TRY_ASSIGN(const bool equal, equal_everywhere(ranks, digest_of(settings.subspan(i, 1))));
    if (equal) continue;
    EBB_TRY_ASSIGN(const std::string who, who_has_what(ranks, settings[i].value));
    return Error{Code::usage, compose("{} is not the same on all ranks: {}", settings[i].name, who),
                 "give every rank the same model, settings and step arguments"};
  }
  return Error{Code::usage, "the ranks were given different numbers of settings"};
}

}  // namespace ebb::libswap
