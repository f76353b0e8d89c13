// Convert: what of a described checkpoint goes into which format, cut how. ckpt-convert and the
// export of a pinned generation are both one call of this; write_checkpoint.h moves the bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "formats/catalog/catalog.h"
#include "formats/catalog/emit.h"
#include "formats/layout/layout.h"
#include "formats/registry.h"

namespace libswap {

struct ConvertRequest {
  const formats::Format* format = nullptr;               // with an emit
  std::uint32_t world = 1;                               // ranks the result is for
  formats::Policy policy = formats::Policy::layer_wise;  // whole tensors, spread by size
  std::function<bool(const formats::TensorEntry&)> wanted = nullptr;  // null: everything
};

// The content to write and where each of its tensors is in the source; then the files to be.
struct Conversion {
  formats::Catalog content;                     // tensors without chunks
  std::vector<std::uint32_t> source_tensor_of;  // content tensor -> source tensor
  formats::EmitPlan plan;
};

// Pure. A format's own keys and paths are kept only where source and target are the same format:
// elsewhere names and states say the same and the target spells them its own way.
formats::Result<Conversion> plan_conversion(const formats::Catalog& source,
                                            const ConvertRequest& request);

}  // namespace libswap
