// Carries out an EmitPlan in memory, with the elements of another checkpoint.
#pragma once

#include <memory>
#include <string>

#include "ebb/formats/catalog/emit.h"
#include "tests/support/source_tree.h"

namespace ebb::test_support {

// Tensor i of the plan is `content.catalog().tensors[i]`.
formats::Result<std::shared_ptr<MemoryTree>> carry_out(const formats::EmitPlan& plan,
                                                       const formats::Checkpoint& content,
                                                       std::string root);

// All elements of a tensor, row-major.
formats::Result<formats::ByteVector> elements_of(const formats::Checkpoint& checkpoint,
                                                 const formats::TensorEntry& tensor);

}  // namespace ebb::test_support
