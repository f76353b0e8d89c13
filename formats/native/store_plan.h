// Where the elements of a converted checkpoint will lie: tiles of every rank of a store that does
// not exist yet. Pure arithmetic. Internal to formats/native.
#pragma once

#include <cstdint>
#include <vector>

#include "ebb/formats/layout/layout.h"
#include "ebb/formats/native/store_model.h"

namespace ebb::formats::native {

struct PlannedRank {
  Superblock superblock;
  Manifest manifest;                   // whole, but its checksums are zeros
  std::vector<std::uint32_t> tensors;  // of the content: one for each segment, tile after tile
};

// Every rank's share under `layout`, in the content's order, packed into tiles of one slot each.
// What the layout gives to several ranks lies at the first of them. Elements of the same content
// get the same store name. REQUIRES: the layout is of the content `model` was made from.
Result<std::vector<PlannedRank>> plan_ranks(const StoreModel& model, const Catalog& content,
                                            const Layout& layout);

}  // namespace ebb::formats::native
