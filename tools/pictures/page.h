// One self-contained HTML page for each picture: a headline, what a script draws from a block of
// JSON, and the same as a table. It asks no network for anything. Names in a checkpoint are data:
// they are text in the page, and neither markup nor script, whatever they are.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ebb/formats/core/result.h"
#include "tools/cli/result_file.h"

namespace ebb::tools::pictures {

// What a picture shows; web/ has a script for each.
enum class Kind : std::uint8_t { shard_map, conversion_plan, norms, disk_rates };

// The file that a flag names for a picture. Code::usage where it is no HTML file, or where
// something is that is no earlier picture of the kind. Before the work whose result is to be drawn.
Result<ResultFile> picture_file(std::string_view flag, const std::string& file, Kind kind);

struct Page {
  std::string subject;   // of the picture: a path, as the user gave it
  std::string headline;  // the number that matters, first
  std::vector<std::string> facts;
  std::vector<std::string> warnings;
  std::string data;  // JSON, for the script
};
std::string html_of(Kind kind, const Page& page);
// Writes it into what picture_file() answered; how many bytes it has.
Result<std::uint64_t> write_page(const ResultFile& file, Kind kind, const Page& page);

}  // namespace ebb::tools::pictures
