// A trace as Chrome's JSON: one process per rank, and lanes on which spans never cross one another.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "ebb/libswap/trace.h"

namespace ebb::libswap {

struct TraceContent {
  std::vector<Trace::Span> spans;  // by begin, what encloses another before it
  std::uint64_t dropped = 0;
  const std::map<Rank, std::vector<std::string>>& tiles;  // what lies in them
  StepFigures figures;
};
std::string chrome_json(const TraceContent& content);

}  // namespace ebb::libswap
