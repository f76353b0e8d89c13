// A table of the data of a picture to which pieces refer by number: what a hundred thousand pieces
// have in common is said once.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "tools/cli/json.h"

namespace ebb::tools::pictures {

inline constexpr std::size_t kMaxPieces = 250000;  // above: neighbours are drawn as one
inline constexpr std::int64_t kNoLayer = -1;

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

// In the table of tensors, as web/pieces.js reads it.
inline std::uint32_t tensor_in(Rows& rows, std::string_view name, std::string_view state,
                               std::string_view dtype, std::string_view shape, std::int64_t layer) {
  JsonWriter row;
  row.open_list().text(name).text(state).text(dtype).text(shape).value(layer).close_list();
  return rows.number_of(row.take());
}
// In the table of places: what of a tensor a piece is.
inline std::uint32_t place_in(Rows& rows, std::string_view what, std::uint64_t bytes,
                              std::int64_t layer) {
  JsonWriter row;
  row.open_list().text(what).number(bytes).value(layer).close_list();
  return rows.number_of(row.take());
}

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
