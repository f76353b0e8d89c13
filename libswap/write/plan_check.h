// What must hold of an EmitPlan before a byte is written.
#pragma once

#include <cstdint>
#include <set>
#include <string>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/catalog/emit.h"

namespace ebb::libswap {

// Names stay inside the directory and are unique, fragments ascend and end inside their file, boxes
// lie inside their tensors, casts are between floating types, a seal follows what it seals; what is
// packed lies in items. Errors name file, offset and reason.
Result<> check_plan(const EmitPlan& plan, const Catalog& content);

// The fragments that store the content: of a box that is stored several times the first one, of a
// tensor that is stored whole and in parts the whole one, and copies in a narrower dtype not at
// all. Copies in a wider dtype count where no other copy does.
using Stores = std::set<const TensorData*>;
Stores stores_of(const EmitPlan& plan, const Catalog& content);

// They store each element of every content tensor exactly once, but for those that are omitted or
// derived.
Result<> check_stores_everything(const EmitPlan& plan, const Catalog& content,
                                 const Stores& stores);

std::uint64_t bytes_of(const EmitPlan& plan);

}  // namespace ebb::libswap
