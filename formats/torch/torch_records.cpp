#include "ebb/formats/torch/torch_records.h"

#include <algorithm>

#include "ebb/formats/torch/tensor.h"

namespace ebb::formats {
namespace {

TorchRecord text_record(std::string_view name, std::string_view text) {
  const ByteView bytes = view_of(text);
  return {name, {bytes.begin(), bytes.end()}};
}

Shape dense_strides(const Shape& shape) {
  Shape strides(shape.size(), 1);
  for (std::size_t i = shape.size(); i-- > 1;)
    strides[i - 1] = strides[i] * std::max<std::uint64_t>(shape[i], 1);
  return strides;
}

}  // namespace

std::array<TorchRecord, 4> leading_records(ByteVector pickle) {
  return {TorchRecord{"data.pkl", std::move(pickle)}, text_record(".format_version", "1"),
          text_record(".storage_alignment", "64"), text_record("byteorder", "little")};
}

TorchRecord last_record() { return text_record("version", "3\n"); }

void pickle_tensor(PickleWriter& pickle, const PickledStorage& storage, std::uint64_t first,
                   const Shape& shape) {
  const std::string_view name = torch_storage_of(storage.dtype);
  const bool typed = !name.empty();
  pickle.global("torch._utils", typed ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
  pickle.mark();
  pickle.mark();
  pickle.string("storage");
  if (typed)
    pickle.global("torch", name);
  else
    pickle.global("torch.storage", "UntypedStorage");
  pickle.string(storage.key);
  pickle.string("cpu");
  pickle.integer(
      static_cast<std::int64_t>(typed ? storage.elems : storage.elems * bytes_of(storage.dtype)));
  pickle.tuple();
  pickle.persistent();
  pickle.integer(static_cast<std::int64_t>(first));
  pickle.int_tuple(shape);
  pickle.int_tuple(dense_strides(shape));
  pickle.boolean(0);  // requires_grad
  pickle.global("collections", "OrderedDict");
  pickle.empty_tuple();
  pickle.reduce();  // no backward hooks
  if (!typed) pickle.global("torch", torch_name_of(storage.dtype));
  pickle.tuple();
  pickle.reduce();
}

}  // namespace ebb::formats
