// The arguments of the run that a Megatron checkpoint keeps. Internal to formats/megatron.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "ebb/formats/catalog/catalog.h"

namespace ebb::formats::megatron {

// A whole number, or 0 and 1 for a switch, among the `args` of the run; nullopt when it is not
// said.
std::optional<std::int64_t> run_arg(const Catalog& catalog, std::string_view name);

// One sentence where the arguments say that the vocabulary is padded; "": they do not.
std::string padding_note(const Catalog& catalog);

}  // namespace ebb::formats::megatron
