// torch tensors as data: what `_rebuild_tensor_v2` and its relatives say, checked against the
// storage they point into. Nothing here reads elements; formats/torch/archive.h does.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ebb/formats/core/dtype.h"
#include "ebb/formats/core/result.h"
#include "ebb/formats/layout/box.h"
#include "ebb/formats/pickle/pickle.h"

namespace ebb::formats {

struct TorchStorage {
  std::string key;          // record "data/<key>"
  std::uint64_t bytes = 0;  // what the pickle declares
  std::uint32_t width = 1;  // bytes of an element of the storage's type; 1 when it has none
};

struct TorchTensor {
  DType dtype = DType::f32;
  Shape shape;
  Shape strides;            // elements
  std::uint64_t first = 0;  // elements into the storage
  TorchStorage storage;

  std::uint64_t elems() const { return volume(shape); }
  std::uint64_t bytes() const { return elems() * bytes_of(dtype); }
  bool row_major() const;  // dense, in the order of its own shape
  // The elements [at, at + extent) of it, in the same storage. REQUIRES: inside.
  TorchTensor part(const Shape& at, Shape extent) const;
};

// Wrappers around a tensor: a parameter, a tensor with attributes. Looked through, so many at most.
constexpr int kMaxWrappers = 8;

// True for an object that is a tensor or a parameter, however it is wrapped.
bool is_torch_tensor(const PickleGraph& graph, PickleId id);

// ('storage', type, key, location, count): what stands for a storage in the pickle.
bool is_torch_storage(const PickleGraph& graph, PickleId persistent);
Result<TorchStorage> torch_storage(const PickleGraph& graph, PickleId persistent);

// Proves that every element lies inside the declared storage and that no product overflows.
Result<TorchTensor> torch_tensor(const PickleGraph& graph, PickleId id);

// "torch.float32" -> F32; nullopt for names we do not know (quantised types among them).
std::optional<DType> torch_dtype_named(std::string_view global);
std::string_view torch_name_of(DType dtype);     // "float32"
std::string_view torch_storage_of(DType dtype);  // "FloatStorage"; "" when only untyped holds it

// torch.Size(...), a tuple or a list of non-negative integers.
std::optional<Shape> torch_shape(const PickleGraph& graph, PickleId id);
// The same into a shape that is there; false: it is none, and `into` is anything.
bool read_torch_shape(const PickleGraph& graph, PickleId id, Shape& into);

}  // namespace ebb::formats
