// Carries out an EmitPlan in memory, with the elements of another checkpoint.
#pragma once

#include <memory>
#include <string>

#include "ebb/formats/catalog/emit.h"
#include "tests/support/source_tree.h"

namespace ebb::test_support {

// Tensor i of the plan is `content.catalog().tensors[i]`.
Result<std::shared_ptr<MemoryTree>> carry_out(const EmitPlan& plan, const Checkpoint& content,
                                              std::string root);

// All elements of a tensor, row-major.
Result<ByteVector> elements_of(const Checkpoint& checkpoint, const TensorEntry& tensor);

}  // namespace ebb::test_support
