// Tensors as pickles spell them, for archives that a test puts together (archives.h).
#pragma once

#include <string_view>

#include "ebb/formats/layout/box.h"
#include "ebb/formats/pickle/pickle_writer.h"

namespace ebb::test_support {

// A float32 tensor in storage `key`, as torch._utils._rebuild_tensor_v2 takes it.
void plain_tensor(formats::PickleWriter& pickle, std::string_view key, const Shape& shape);
// The arguments of that call.
void tensor_arguments(formats::PickleWriter& pickle, std::string_view key, const Shape& shape);

// A subclass that wraps other tensors, as torch._tensor._rebuild_from_type_v2 makes it; `state`
// writes its attributes.
void wrapper_subclass(formats::PickleWriter& pickle, std::string_view module, std::string_view name,
                      const Shape& shape, auto state) {
  pickle.call("torch._tensor", "_rebuild_from_type_v2", [&] {
    pickle.global("torch._utils", "_rebuild_wrapper_subclass");
    pickle.global(module, name);
    pickle.tuple([&] {
      pickle.global(module, name);
      pickle.global("torch", "float32");
      pickle.int_tuple(shape);
      pickle.int_tuple(formats::Shape(shape.size(), 1));
      pickle.integer(0);
      pickle.call1("torch.serialization", "_get_layout", [&] { pickle.string("torch.strided"); });
      pickle.call1("torch", "device", [&] { pickle.string("cpu"); });
      pickle.boolean(0);
    });
    state();
  });
}

}  // namespace ebb::test_support
