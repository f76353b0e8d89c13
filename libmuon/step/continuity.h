// What a store or checkpoint says its state was trained with, beside what the model asks for now.
#pragma once

#include <string>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/libmuon/step/stored_state.h"

namespace ebb::libmuon {

// One note that names each setting which is another one now, "" if none is; learning rates change
// all the time and are left out. Code::layout where momentum is kept by the other convention: taken
// as it is, it would be too large or too small by 1 / (1 - beta).
// `held`: what of each parameter is taken, and compared; all of all where it is empty.
Result<std::string> compare_groups(const ModelSpec& model, const Catalog& stored,
                                   std::span<const Held> held = {});

// A manifest's groups as a catalog has them. Code::unsupported names a setting that this version
// does not know: it would train on with another optimizer.
Result<Catalog> groups_of(const formats::native::Manifest& manifest);

}  // namespace ebb::libmuon
