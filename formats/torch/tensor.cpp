#include "ebb/formats/torch/tensor.h"

#include <algorithm>

#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/units.h"
#include "ebb/formats/pickle/known_globals.h"
#include "ebb/formats/torch/unread_form.h"

namespace ebb::formats {
namespace {

constexpr std::size_t kMaxDims = 64;
constexpr std::string_view kTensorMaker = "_make_in_reduce_ex";  // Transformer Engine's

struct Names {
  DType dtype;
  std::string_view name;
  std::string_view storage;  // empty: kept in an UntypedStorage
};
constexpr Names kNames[] = {
    {DType::f32, "float32", "FloatStorage"},
    {DType::bf16, "bfloat16", "BFloat16Storage"},
    {DType::f16, "float16", "HalfStorage"},
    {DType::f64, "float64", "DoubleStorage"},
    {DType::i64, "int64", "LongStorage"},
    {DType::i32, "int32", "IntStorage"},
    {DType::i16, "int16", "ShortStorage"},
    {DType::i8, "int8", "CharStorage"},
    {DType::u8, "uint8", "ByteStorage"},
    {DType::boolean, "bool", "BoolStorage"},
    {DType::c64, "complex64", "ComplexFloatStorage"},
    {DType::c128, "complex128", "ComplexDoubleStorage"},
    {DType::u64, "uint64", ""},
    {DType::u32, "uint32", ""},
    {DType::u16, "uint16", ""},
    {DType::f8_e4m3, "float8_e4m3fn", ""},
    {DType::f8_e5m2, "float8_e5m2", ""},
    {DType::f8_e4m3fnuz, "float8_e4m3fnuz", ""},
    {DType::f8_e5m2fnuz, "float8_e5m2fnuz", ""},
    {DType::f8_e8m0, "float8_e8m0fnu", ""},
};

const Names* names_of(DType dtype) {
  const auto* found = std::find_if(std::begin(kNames), std::end(kNames),
                                   [&](const Names& row) { return row.dtype == dtype; });
  return found == std::end(kNames) ? nullptr : found;
}

Error bad_tensor(const PickleGraph& graph, std::string why) {
  return Error{Code::corrupt, graph.where() + ": " + std::move(why)};
}

std::optional<std::uint64_t> count(const PickleGraph& graph, PickleId id) {
  if (!graph.is(id, PickleKind::integer) || graph.integer(id) < 0) return std::nullopt;
  return static_cast<std::uint64_t>(graph.integer(id));
}

struct StorageClass {
  std::optional<DType> dtype;  // nullopt: untyped, counted in bytes
};

Result<StorageClass> storage_class(const PickleGraph& graph, PickleId id) {
  if (!graph.is(id, PickleKind::global)) return bad_tensor(graph, "a storage without a class");
  const std::string_view name = graph.text(id);
  if (name == "torch.storage.UntypedStorage" || name == "torch.UntypedStorage")
    return StorageClass{};
  const std::string_view type = name.starts_with("torch.cuda.") ? name.substr(11)
                                : name.starts_with("torch.")    ? name.substr(6)
                                                                : std::string_view{};
  for (const Names& row : kNames) {
    if (row.storage.empty()) continue;
    if (row.storage == type) return StorageClass{row.dtype};
  }
  return Error{Code::unsupported, compose("{}: storage class {} is not read", graph.where(), name)};
}

struct ParsedStorage {
  TorchStorage storage;
  std::optional<DType> dtype;
};

// ('storage', class, key, location, numel[, view])
Result<ParsedStorage> parse_storage(const PickleGraph& graph, PickleId id) {
  if (!graph.is(id, PickleKind::persistent))
    return bad_tensor(graph, "a tensor whose storage is no persistent id");
  const PickleId tuple = graph.items(id)[0];
  if (!graph.is(tuple, PickleKind::tuple) || graph.items(tuple).size() < 5 ||
      graph.items(tuple).size() > 6)
    return bad_tensor(graph, "a persistent id that is not (storage, class, key, location, count)");
  const std::span<const PickleId> parts = graph.items(tuple);
  const std::optional<std::uint64_t> numel = count(graph, parts[4]);
  if (!is_torch_storage(graph, id) || !graph.is(parts[2], PickleKind::string) || !numel)
    return bad_tensor(graph, "a persistent id with wrong types in it");
  EBB_TRY_ASSIGN(const StorageClass kind, storage_class(graph, parts[1]));
  const std::uint32_t width = kind.dtype ? bytes_of(*kind.dtype) : 1;
  const auto bytes = checked_mul(*numel, width);
  if (!bytes) return bad_tensor(graph, "a storage larger than 2^64 bytes");
  if (parts.size() == 6 && !graph.is(parts[5], PickleKind::none))
    return Error{Code::unsupported,
                 graph.where() + ": a storage that is a view of another, as torch 0.3 wrote it",
                 "save it again with a newer torch"};
  return ParsedStorage{{std::string(graph.text(parts[2])), *bytes, width}, kind.dtype};
}

// The last element the strides reach must lie inside the storage.
Result<> check_inside(const PickleGraph& graph, const TorchTensor& tensor) {
  const auto elems = checked_volume(tensor.shape);
  if (!elems || !checked_mul(*elems, bytes_of(tensor.dtype)))
    return bad_tensor(graph,
                      "a tensor of shape " + to_string(tensor.shape) + " does not fit 64 bits");
  if (*elems == 0) return {};
  std::optional<std::uint64_t> end = checked_add(tensor.first, 1);
  for (std::size_t i = 0; end && i < tensor.shape.size(); ++i) {
    const auto reach = checked_mul(tensor.shape[i] - 1, tensor.strides[i]);
    end = reach ? checked_add(*end, *reach) : std::nullopt;
  }
  if (end) end = checked_mul(*end, bytes_of(tensor.dtype));
  if (!end || *end > tensor.storage.bytes)
    return bad_tensor(
        graph, compose("a tensor of shape {} reaches past the end of storage '{}' of {} bytes",
                       to_string(tensor.shape), tensor.storage.key, tensor.storage.bytes));
  return {};
}

// torch keeps x.conj() and the like as a mark on the tensor, over elements that are not changed.
Result<> check_plain(const PickleGraph& graph, std::span<const PickleId> args, std::size_t marks) {
  if (args.size() <= marks || !graph.is(args[marks], PickleKind::dict)) return {};
  const std::span<const PickleId> entries = graph.items(args[marks]);
  if (entries.empty()) return {};
  return Error{Code::unsupported,
               graph.where() + ": a tensor whose elements are stored conjugated or negated",
               "save it after resolve_conj() and resolve_neg()"};
}

// (storage, offset, size, stride, ...) of _rebuild_tensor*, with v3's dtype at position 6.
Result<TorchTensor> rebuilt(const PickleGraph& graph, std::span<const PickleId> args,
                            bool has_dtype) {
  if (args.size() < (has_dtype ? 7u : 4u)) return bad_tensor(graph, "a tensor with few arguments");
  EBB_TRY_ASSIGN(ParsedStorage parsed, parse_storage(graph, args[0]));
  const auto first = count(graph, args[1]);
  TorchTensor tensor{.dtype = parsed.dtype.value_or(DType::u8),
                     .first = first.value_or(0),
                     .storage = std::move(parsed.storage)};
  if (!first || !read_torch_shape(graph, args[2], tensor.shape) ||
      !read_torch_shape(graph, args[3], tensor.strides) ||
      tensor.shape.size() != tensor.strides.size())
    return bad_tensor(graph, "a tensor whose offset, size or strides make no sense");
  if (has_dtype) {
    const auto dtype = graph.is(args[6], PickleKind::global)
                           ? torch_dtype_named(graph.text(args[6]))
                           : std::nullopt;
    if (!dtype)
      return Error{Code::unsupported,
                   compose("{}: a tensor of dtype {}, which is not read", graph.where(),
                           (graph.is(args[6], PickleKind::global) ? printable(graph.text(args[6]))
                                                                  : "that is no name"))};
    tensor.dtype = *dtype;
  }
  EBB_TRY(check_plain(graph, args, has_dtype ? 7 : 6));
  EBB_TRY(check_inside(graph, tensor));
  return tensor;
}

}  // namespace

bool is_torch_storage(const PickleGraph& graph, PickleId persistent) {
  const PickleId tuple = graph.items(persistent)[0];
  if (!graph.is(tuple, PickleKind::tuple) || graph.items(tuple).empty()) return false;
  const PickleId kind = graph.items(tuple)[0];
  return graph.is(kind, PickleKind::string) && graph.text(kind) == "storage";
}

Result<TorchStorage> torch_storage(const PickleGraph& graph, PickleId persistent) {
  EBB_TRY_ASSIGN(ParsedStorage parsed, parse_storage(graph, persistent));
  return std::move(parsed.storage);
}

bool TorchTensor::row_major() const {
  std::uint64_t dense = 1;
  for (std::size_t i = shape.size(); i-- > 0;) {
    if (shape[i] != 1 && strides[i] != dense) return elems() == 0;
    dense *= shape[i];
  }
  return true;
}

TorchTensor TorchTensor::part(const Shape& at, Shape extent) const {
  TorchTensor view = *this;
  view.shape = std::move(extent);
  for (std::size_t i = 0; i < at.size(); ++i) view.first += at[i] * strides[i];
  return view;
}

std::optional<DType> torch_dtype_named(std::string_view global) {
  if (!global.starts_with("torch.")) return std::nullopt;
  const std::string_view name = global.substr(6);
  for (const Names& row : kNames)
    if (row.name == name) return row.dtype;
  if (name == "float") return DType::f32;
  if (name == "double") return DType::f64;
  if (name == "half") return DType::f16;
  if (name == "long") return DType::i64;
  if (name == "int") return DType::i32;
  return std::nullopt;
}

std::string_view torch_name_of(DType dtype) {
  const Names* row = names_of(dtype);
  return row == nullptr ? std::string_view{} : row->name;
}

std::string_view torch_storage_of(DType dtype) {
  const Names* row = names_of(dtype);
  return row == nullptr ? std::string_view{} : row->storage;
}

bool read_torch_shape(const PickleGraph& graph, PickleId id, Shape& into) {
  into.clear();
  if (graph.is_object_of(id, "torch.Size")) {
    const std::span<const PickleId> args = graph.items(graph.args(id));
    if (args.empty()) return true;
    id = args[0];
  }
  if (!graph.is(id, PickleKind::tuple) && !graph.is(id, PickleKind::list)) return false;
  const std::span<const PickleId> items = graph.items(id);
  if (items.size() > kMaxDims) return false;
  into.reserve(items.size());
  for (const PickleId item : items) {
    const auto extent = count(graph, item);
    if (!extent) return false;
    into.push_back(*extent);
  }
  return true;
}

std::optional<Shape> torch_shape(const PickleGraph& graph, PickleId id) {
  Shape shape;
  if (!read_torch_shape(graph, id, shape)) return std::nullopt;
  return shape;
}

bool is_torch_tensor(const PickleGraph& graph, PickleId id) {
  if (!graph.is(id, PickleKind::object)) return false;
  const std::string_view name = graph.class_name(id);
  if (name.empty()) {
    const auto member = member_of_tensor_class(graph, graph.callee(id));
    return member && member->member == kTensorMaker;
  }
  return name.starts_with("torch._utils._rebuild_") ||
         name == "torch._tensor._rebuild_from_type_v2" || name == "torch.nn.parameter.Parameter";
}

Result<TorchTensor> torch_tensor(const PickleGraph& graph, PickleId id) {
  if (const auto form = unread_form(graph, id)) return error_of(*form, graph.where());
  // A parameter wraps a tensor, and a tensor with attributes wraps its plain self.
  for (int depth = 0; depth < kMaxWrappers && graph.is(id, PickleKind::object); ++depth) {
    const std::string_view name = graph.class_name(id);
    const std::span<const PickleId> args = graph.items(graph.args(id));
    if (name == "torch._utils._rebuild_tensor" || name == "torch._utils._rebuild_tensor_v2")
      return rebuilt(graph, args, false);
    if (name == "torch._utils._rebuild_tensor_v3") return rebuilt(graph, args, true);
    if (name == "torch._tensor._rebuild_from_type_v2") {
      // (function, type, arguments, state)
      if (args.size() < 3 || !graph.is(args[0], PickleKind::global) ||
          !graph.is(args[2], PickleKind::tuple))
        return bad_tensor(graph, "a tensor with attributes in an unknown form");
      const std::string_view function = graph.text(args[0]);
      const std::span<const PickleId> inner = graph.items(args[2]);
      if (function == "torch._utils._rebuild_tensor_v2") return rebuilt(graph, inner, false);
      if (function == "torch._utils._rebuild_tensor_v3") return rebuilt(graph, inner, true);
      if (inner.empty()) return bad_tensor(graph, "a parameter of no tensor");
      id = inner[0];
      continue;
    }
    if (args.empty() || !is_torch_tensor(graph, id)) break;
    id = args[0];
  }
  return bad_tensor(graph, "a tensor wrapped in an unknown form");
}

}  // namespace ebb::formats
