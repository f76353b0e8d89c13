#include "tools/cli/rows_text.h"

#include "ebb/formats/core/compose.h"

namespace ebb::tools {

std::string rows_text(const Box& box, const Shape& shape) {
  if (box == formats::whole(shape)) return "all";
  for (std::size_t d = 1; d < shape.size(); ++d)
    if (box.extent[d] != shape[d]) return formats::to_string(box);
  if (box.extent[0] == 0) return "-";
  const std::uint64_t last = box.offset[0] + box.extent[0] - 1;
  std::string text = std::to_string(box.offset[0]);
  if (last != box.offset[0]) text += compose("-{}", last);
  return text;
}

}  // namespace ebb::tools
