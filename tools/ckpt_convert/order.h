// The source with the names that --names says, and the order of its parameters that --names or
// --like says.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/conversion/param_order.h"
#include "tools/ckpt_convert/conversion.h"

namespace ebb::tools::convert {

struct Opened {
  std::unique_ptr<Checkpoint> source;
  std::optional<formats::SaidOrder> order;  // unset: as the source has it
  std::vector<std::string> changes;         // of what was said that has no effect, a line each
};
Result<Opened> open_source(const Request& request);

}  // namespace ebb::tools::convert
