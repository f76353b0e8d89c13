// What ckpt-convert says of what it would do, and of what it has done.
#pragma once

#include <string>

#include "tools/ckpt_convert/conversion.h"

namespace ebb::tools::convert {

std::string plan_text(const Request& request, const Prepared& prepared);
std::string done_text(const Request& request, const Prepared& prepared, const Outcome& outcome);
// Of the plan alone where there is no outcome.
std::string report_json(const Request& request, const Prepared& prepared, const Outcome* outcome);

}  // namespace ebb::tools::convert
