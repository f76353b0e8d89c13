#include "tests/support/pickled_tensors.h"

namespace ebb::test_support {

void tensor_arguments(formats::PickleWriter& pickle, std::string_view key, const Shape& shape) {
  Shape strides(shape.size(), 1);
  for (std::size_t i = shape.size(); i > 1; --i) strides[i - 2] = strides[i - 1] * shape[i - 1];
  pickle.persistent([&] {
    pickle.tuple([&] {
      pickle.string("storage");
      pickle.global("torch", "FloatStorage");
      pickle.string(key);
      pickle.string("cpu");
      pickle.integer(static_cast<std::int64_t>(formats::volume(shape)));
    });
  });
  pickle.integer(0);
  pickle.int_tuple(shape);
  pickle.int_tuple(strides);
  pickle.boolean(0);
  pickle.call("collections", "OrderedDict");
}

void plain_tensor(formats::PickleWriter& pickle, std::string_view key, const Shape& shape) {
  pickle.call("torch._utils", "_rebuild_tensor_v2", [&] { tensor_arguments(pickle, key, shape); });
}

}  // namespace ebb::test_support
