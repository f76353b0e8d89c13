// Lists and tuples that torch keeps as one value. Internal to formats/dcp.
#pragma once

#include "ebb/formats/catalog/catalog.h"

namespace ebb::formats::dcp {

// torch enters dicts, and lists that hold a tensor or a dict of something; other lists and tuples
// are one value under one key. Those that the content has item by item, as torch.save's have it
// where they lie in each other, become one. Where items are missing they stay what they are.
void join_lists(Catalog& content);

}  // namespace ebb::formats::dcp
