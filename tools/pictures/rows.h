// A table of the data of a picture to which pieces refer by number: what a hundred thousand pieces
// have in common is said once.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "tools/cli/json.h"

namespace ebb::tools::pictures {

class Rows {
 public:
  // Of the row that this JSON is; a new one where there is none like it.
  std::uint32_t number_of(std::string json) {
    if (json.ends_with('\n')) json.pop_back();
    const auto [at, added] =
        numbers_.try_emplace(std::move(json), static_cast<std::uint32_t>(rows_.size()));
    if (added) rows_.push_back(&at->first);
    return at->second;
  }
  void write(JsonWriter& json) const {
    json.open_list();
    for (const std::string* row : rows_) json.raw(*row);
    json.close_list();
  }

 private:
  std::unordered_map<std::string, std::uint32_t> numbers_;
  std::vector<const std::string*> rows_;
};

// Numbers of pieces, each less that of the piece before: short ones.
class Differences {
 public:
  template <typename... Numbers>
  void add(Numbers... numbers) {
    const std::vector<std::int64_t> all = {static_cast<std::int64_t>(numbers)...};
    before_.resize(all.size());
    for (std::size_t i = 0; i < all.size(); ++i) {
      text_.append(text_.empty() ? "" : ",").append(std::to_string(all[i] - before_[i]));
      before_[i] = all[i];
    }
  }
  std::string list() const { return "[" + text_ + "]"; }

 private:
  std::string text_;
  std::vector<std::int64_t> before_;
};

}  // namespace ebb::tools::pictures
