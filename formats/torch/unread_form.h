// Tensors that are stored in a form which is not read - a rank's part of a sharded tensor, a
// quantized state, a class of somebody's own - named as what they are. None of them is damage.
#pragma once

#include <optional>
#include <string>

#include "ebb/formats/core/dtype.h"
#include "ebb/formats/core/error.h"
#include "ebb/formats/layout/box.h"
#include "ebb/formats/pickle/pickle.h"

namespace ebb::formats {

struct UnreadForm {
  std::string what;  // for people: "torchao's 8-bit state (OptimState8bit)"
  std::string hint;  // what to do about it
  // What it stands for, where the pickle says that.
  std::optional<DType> dtype = {};
  std::optional<Shape> shape = {};
};

// nullopt: it is no tensor (torch/tensor.h), or one whose elements lie in a storage of its own.
std::optional<UnreadForm> unread_form(const PickleGraph& graph, PickleId id);

// Code::unsupported.
Error error_of(const UnreadForm& form, const std::string& where);

}  // namespace ebb::formats
