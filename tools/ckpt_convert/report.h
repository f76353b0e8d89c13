// What ckpt-convert says of what it would do, and of what it has done.
#pragma once

#include <string>

#include "tools/ckpt_convert/conversion.h"
#include "tools/ckpt_convert/plan_picture.h"

namespace ebb::tools::convert {

std::string plan_text(const Request& request, const Prepared& prepared);
std::string done_text(const Request& request, const Prepared& prepared, const Outcome& outcome);
// What there is beyond the plan; nullptr: it was not asked for, or has not come about.
struct Beyond {
  const Outcome* outcome = nullptr;
  const PlanPicture* picture = nullptr;
};
std::string report_json(const Request& request, const Prepared& prepared, const Beyond& beyond);

}  // namespace ebb::tools::convert
