// Parameters with more than one name, of which a checkpoint stores one, as DeepSpeed and
// transformers do: a value "tied" says so, {other name: the one that is stored}.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/catalog/format.h"
#include "ebb/formats/conversion/content_view.h"

namespace ebb::formats {

inline constexpr std::string_view kTiedKey = "tied";

// The other name, and the one that is stored.
using Ties = std::vector<std::pair<std::string, std::string>>;
Ties ties_in(const Catalog& catalog);

// For content that enters a folder whose model lies in files of its own: under each name, where
// loaders want that, and without the value, for which no file is. One line for each thing done.
std::vector<std::string> settle_ties(const Format& to, Catalog& content,
                                     std::vector<MadeOf>& made_of);

}  // namespace ebb::formats
