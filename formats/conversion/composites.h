// What a conversion makes of tensors that are made of parts (catalog/composite.h): formats that
// know their classes get those, others the parts and a value that says of what, so that the way
// back leads to the classes.
#pragma once

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/catalog/format.h"
#include "ebb/formats/core/result.h"

namespace ebb::formats {

// What formats without such classes keep of them: a list of the wholes, by name and state.
inline constexpr std::string_view kCompositesKey = "tensors_of_parts";

// For content that leaves any format: parts are parts of what the value says. One that says nothing
// sensible stays where it is.
void take_composites(Catalog& content);

// For content that enters `to`. Code::unsupported where it has no place for them, and where parts
// that were left out, or an object that the class keeps, is missing to make the whole again.
Result<> settle_composites(const Format& to, Catalog& content);

}  // namespace ebb::formats
