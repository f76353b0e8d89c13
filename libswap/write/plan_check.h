// What must hold of an EmitPlan before a byte is written.
#pragma once

#include <cstdint>
#include <set>
#include <string>
#include <vector>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/catalog/emit.h"

namespace ebb::libswap {

// A plan that may be written, and what the one walk over it finds. Borrows the plan.
struct CheckedPlan {
  struct Part {
    const OutputFile* file;
    const TensorData* data;
  };
  std::uint64_t bytes = 0;  // of all files
  // The fragments that store the content: of a box that is stored several times the first one, of
  // a tensor that is stored whole and in parts the whole one, and copies in a narrower dtype not
  // at all. Copies in a wider dtype count where no other copy does.
  std::vector<Part> parts;             // in the plan's order
  std::set<const TensorData*> stores;  // the same, to look one up
};

// Names stay inside the directory and are unique, fragments ascend and end inside their file, boxes
// lie inside their tensors, casts are between floating types, a seal follows what it seals; what is
// packed lies in items. Errors name file, offset and reason.
Result<CheckedPlan> check_plan(const EmitPlan& plan, const Catalog& content);

// Its parts store each element of every content tensor exactly once, but for those that are omitted
// or derived.
Result<> check_stores_everything(const EmitPlan& plan, const Catalog& content,
                                 const CheckedPlan& checked);

// The same for two plans only if they make the same files of the same content in the same segments.
std::string identity_of(const EmitPlan& plan, const Catalog& content, std::uint64_t segment_bytes);

}  // namespace ebb::libswap
