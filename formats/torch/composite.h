// Tensor classes that keep other tensors in their stead - torchao's quantized states and weights -
// as torch pickles them: _rebuild_wrapper_subclass with the class's attributes. What they are made
// of is read, whatever the class.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ebb/formats/catalog/composite.h"
#include "ebb/formats/torch/tensor.h"

namespace ebb::formats {

struct TorchComposite {
  struct Part {
    std::string name;  // of the attribute; "outer.inner" where an attribute is such a tensor itself
    TorchTensor tensor;
  };
  Composite whole;
  std::vector<Part> parts;  // in stored order; at least one
};

// nullopt: it is none, or keeps what is not read (unread_form says what it is). The errors are
// those of torch_tensor and value_of.
Result<std::optional<TorchComposite>> composite_of(const PickleGraph& graph, PickleId id);

}  // namespace ebb::formats
