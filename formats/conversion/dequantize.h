// Plain tensors in the place of quantized ones, where the formula of their class is public:
// torchao's optimizer states and most of its weights. Source: torchao 0.18,
// torchao/optim/subclass_*.py and torchao/quantization.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/core/result.h"

namespace ebb::formats {

struct Dequantized {
  std::unique_ptr<Checkpoint> checkpoint;
  std::vector<std::string> changes;  // one line for each class
};

// What the class's own dequantize() gives, made when it is read: states in F32, weights in the
// dtype that they stand for. Classes without a known formula stay. Code::usage where no tensor is
// of a class of its own.
Result<Dequantized> dequantized(std::unique_ptr<Checkpoint> stored);

}  // namespace ebb::formats
