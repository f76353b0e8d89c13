// --picture: rates by block and depth, and where a step lies.
#pragma once

#include <optional>
#include <string>

#include "ebb/formats/core/result.h"
#include "tools/swap_bench/report.h"

namespace ebb::tools::swap_bench {

// Code::usage where `file` cannot be written as a picture; before anything is measured.
Result<> check_picture(const std::string& file);
// Its numbers are those of report_json.
Result<PictureWritten> write_picture(const std::string& file, const std::string& directory,
                                     const Sweep& sweep, const std::optional<Step>& step);
std::string text_of(const std::optional<PictureWritten>& picture);

}  // namespace ebb::tools::swap_bench
