// What must hold of an EmitPlan before a byte is written.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>

#include "formats/catalog/catalog.h"
#include "formats/catalog/emit.h"

namespace libswap {

// Names stay inside the directory and are unique, fragments ascend and end inside their file, boxes
// lie inside their tensors, a seal follows the data it seals. Errors name file, offset and reason.
formats::Result<> check_plan(const formats::EmitPlan& plan, const formats::Catalog& source,
                             std::span<const std::uint32_t> source_tensor_of);

// Fragments that store a box again which an earlier one stores already.
using Repeats = std::set<const formats::TensorData*>;
Repeats repeats_of(const formats::EmitPlan& plan);

// Repeats apart, the plan stores each element of every content tensor exactly once.
formats::Result<> check_stores_everything(const formats::EmitPlan& plan,
                                          const formats::Catalog& source,
                                          std::span<const std::uint32_t> source_tensor_of,
                                          const Repeats& repeats);

std::uint64_t bytes_of(const formats::EmitPlan& plan);

}  // namespace libswap
