// --plan: what stays, what moves and between which ranks, as a picture and as JSON.
#pragma once

#include <string>

#include "tools/ckpt_convert/conversion.h"
#include "tools/ckpt_convert/transfers.h"
#include "tools/cli/json.h"

namespace ebb::tools::convert {

struct PlanPicture {
  std::string file;
  std::uint64_t bytes = 0;  // of the page
  Transfers transfers;
};

// Code::usage where `file` cannot be written as a picture; before the plan is made.
Result<> check_picture(const std::string& file);
Result<PlanPicture> write_picture(const Request& request, const Prepared& prepared,
                                  const std::string& file);

std::string picture_text(const PlanPicture& picture);
void write_transfers(JsonWriter& json, const PlanPicture& picture);  // under "plan"

}  // namespace ebb::tools::convert
