// The order in which an optimizer numbers its parameters, where the target has numbers for names.
#pragma once

#include <string>
#include <vector>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/core/result.h"

namespace ebb::formats {

// What somebody says, or another checkpoint of the job shows.
struct SaidOrder {
  std::vector<GroupEntry> groups;  // by name; settings that the content's own groups lack
  // Whether groups end where those of the content do, or where they end here.
  enum class Borders : std::uint8_t { of_the_content, said } borders = Borders::said;
  std::string by;  // how messages call it: "--names FILE"
};

// Gives the content's groups this order. Their settings stay: a group that is said has those of
// its parameters, which must be of one group, or of groups with the same settings. Code::usage
// where names and the content do not fit. A line that says what was done.
Result<std::string> take_order(const SaidOrder& said, Catalog& content);

// Code::unsupported where a parameter with states is in no group, or nothing tells the order; the
// hint says how to say it.
Result<> check_order(const Catalog& content, std::string_view target);

}  // namespace ebb::formats
