// The texts of web/, which embed.cmake makes part of the programs.
#pragma once

#include <string_view>

namespace ebb::tools::pictures::web {

extern const std::string_view frame_css;
extern const std::string_view marks_js, figure_js, page_js;  // of every picture, in this order
extern const std::string_view layers_js;                     // of those that know layers
extern const std::string_view pieces_js;                     // of the two that draw pieces
extern const std::string_view map_js, plan_js, norms_js, rates_js;

}  // namespace ebb::tools::pictures::web
