// A state dict as the object that torch.save pickles. Internal to formats that write such files.
#pragma once

#include <functional>

#include "ebb/formats/pickle/pickle_writer.h"
#include "ebb/formats/state_dict/nesting.h"

namespace ebb::formats::torch_save {

// What lies at `place`, with what `leaf` writes for tensors and values.
void write_nested(PickleWriter& file, const Nesting& nesting, const Nesting::Place& place,
                  const std::function<void(const Nesting::Leaf&)>& leaf);

}  // namespace ebb::formats::torch_save
