// PathItem: one step of a nested position, a dict's key or a list's index.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <variant>

namespace ebb::formats {

// Its own copies: where a std::variant's copy of a string finds no memory, libstdc++ 12 destroys a
// string that never was (a variant that can't become valueless has no sign for "nothing yet").
class PathItem : public std::variant<std::string, std::int64_t> {
 public:
  using variant::variant;
  using variant::operator=;

  PathItem() = default;
  PathItem(const PathItem& other) : variant() { *this = other; }  // NOLINT: for that reason
  PathItem(PathItem&& other) noexcept = default;
  PathItem& operator=(const PathItem& other) {
    if (const auto* text = std::get_if<std::string>(&other))
      *this = std::string(*text);
    else
      *this = std::get<std::int64_t>(other);
    return *this;
  }
  PathItem& operator=(PathItem&& other) noexcept = default;
  ~PathItem() = default;
};

}  // namespace ebb::formats
