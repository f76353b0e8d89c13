#include "ebb/formats/torch/numpy_array.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "ebb/formats/core/sha256.h"
#include "ebb/formats/torch/tensor.h"

namespace ebb::formats {
namespace {

constexpr std::array<std::string_view, 2> kArrayMakers = {"numpy._core.multiarray._reconstruct",
                                                          "numpy.core.multiarray._reconstruct"};

constexpr std::pair<std::string_view, DType> kArrayDTypes[] = {
    {"b1", DType::boolean}, {"i1", DType::i8},  {"i2", DType::i16}, {"i4", DType::i32},
    {"i8", DType::i64},     {"u1", DType::u8},  {"u2", DType::u16}, {"u4", DType::u32},
    {"u8", DType::u64},     {"f2", DType::f16}, {"f4", DType::f32}, {"f8", DType::f64}};

std::optional<DType> array_dtype(std::string_view name) {
  for (const auto& [theirs, ours] : kArrayDTypes)
    if (theirs == name) return ours;
  return std::nullopt;
}

// numpy.dtype('u4', False, True) with the state (3, '<', None, None, None, -1, -1, 0).
std::optional<std::string_view> array_dtype_in(const PickleGraph& graph, PickleId id) {
  if (!graph.is_object_of(id, "numpy.dtype") || graph.state(id) == kNoPickle) return std::nullopt;
  const auto args = graph.items(graph.args(id));
  if (args.empty() || !graph.is(args[0], PickleKind::string) ||
      !graph.is(graph.state(id), PickleKind::tuple))
    return std::nullopt;
  const auto state = graph.items(graph.state(id));
  if (state.size() < 2 || !graph.is(state[1], PickleKind::string)) return std::nullopt;
  const std::string_view order = graph.text(state[1]);
  const std::string_view name = graph.text(args[0]);
  if ((order != "<" && order != "|") || !array_dtype(name)) return std::nullopt;
  return name;
}

// What `items` hold, as is_numpy_array() has proven.
DType dtype_of_array(const Value& array) { return *array_dtype(array.items[0].items[0].text); }
const Value& array_shape(const Value& array) { return array.items[0].items[1]; }
const ByteVector& bytes_of_array(const Value& array) { return array.items[1].raw; }

bool fits_shape(const Value& shape, DType dtype, std::size_t bytes) {
  std::uint64_t elements = 1;
  for (const Value& extent : shape.items) {
    if (extent.kind != Value::Kind::integer || extent.integer < 0) return false;
    const auto count = static_cast<std::uint64_t>(extent.integer);
    if (count != 0 && elements > bytes / count + 1) return false;
    elements *= count;
  }
  return elements <= bytes && elements * bytes_of(dtype) == bytes;
}

}  // namespace

std::optional<Value> numpy_array(const PickleGraph& graph, PickleId id) {
  const std::string_view maker = graph.class_name(id);
  if (std::ranges::find(kArrayMakers, maker) == kArrayMakers.end() ||
      graph.state(id) == kNoPickle || !graph.is(graph.state(id), PickleKind::tuple))
    return std::nullopt;
  const auto args = graph.items(graph.args(id));
  const auto state = graph.items(graph.state(id));  // version, shape, dtype, is_fortran, bytes
  const bool plain = !args.empty() && graph.is(args[0], PickleKind::global) &&
                     graph.text(args[0]) == "numpy.ndarray" && state.size() == 5 &&
                     graph.is(state[1], PickleKind::tuple) &&
                     graph.is(state[3], PickleKind::boolean) && graph.integer(state[3]) == 0 &&
                     graph.is(state[4], PickleKind::bytes);
  const auto dtype = plain ? array_dtype_in(graph, state[2]) : std::nullopt;
  if (!dtype) return std::nullopt;
  Value shape = Value::of_tuple({});
  for (const PickleId extent : graph.items(state[1])) {
    if (!graph.is(extent, PickleKind::integer)) return std::nullopt;
    shape.items.push_back(Value::of_int(graph.integer(extent)));
  }
  const ByteView bytes = view_of(graph.text(state[4]));
  Value made = Value::of_tuple({Value::of_string(std::string(*dtype)), std::move(shape)});
  Value array;
  array.kind = Value::Kind::object;
  array.text = maker;
  array.items = {std::move(made), Value::of_bytes({bytes.begin(), bytes.end()})};
  return is_numpy_array(array) ? std::optional(std::move(array)) : std::nullopt;
}

bool is_numpy_array(const Value& value) {
  if (value.kind != Value::Kind::object ||
      std::ranges::find(kArrayMakers, value.text) == kArrayMakers.end())
    return false;
  if (value.items.size() != 2 || value.items[0].items.size() != 2) return false;
  const auto dtype = array_dtype(value.items[0].items[0].text);
  return dtype && value.items[1].kind == Value::Kind::bytes &&
         fits_shape(array_shape(value), *dtype, bytes_of_array(value).size());
}

bool holds_numpy_array(const Value& value) {
  return is_numpy_array(value) || std::ranges::any_of(value.items, holds_numpy_array) ||
         std::ranges::any_of(value.entries,
                             [](const auto& entry) { return holds_numpy_array(entry.second); });
}

void write_numpy_array(PickleWriter& pickle, const Value& value) {
  const std::size_t dot = value.text.rfind('.');
  const std::string_view maker = value.text;
  const std::string_view dtype = value.items[0].items[0].text;
  pickle.call(maker.substr(0, dot), maker.substr(dot + 1), [&] {
    pickle.global("numpy", "ndarray");
    pickle.tuple([&] { pickle.integer(0); });
    pickle.bytes(view_of("b"));
  });
  pickle.build([&] {
    pickle.tuple([&] {
      pickle.integer(1);
      pickle.tuple([&] {
        for (const Value& extent : array_shape(value).items) pickle.integer(extent.integer);
      });
      pickle.call("numpy", "dtype", [&] {
        pickle.string(dtype);
        pickle.boolean(0);
        pickle.boolean(1);
      });
      pickle.build([&] {
        pickle.tuple([&] {
          pickle.integer(3);
          pickle.string(dtype.ends_with('1') ? "|" : "<");
          for (int i = 0; i < 3; ++i) pickle.none();
          for (const int number : {-1, -1, 0}) pickle.integer(number);
        });
      });
      pickle.boolean(0);
      pickle.bytes(bytes_of_array(value));
    });
  });
}

std::optional<Value> with_tensors(const Value& value) {
  if (is_numpy_array(value)) {
    Value tensor;
    tensor.kind = Value::Kind::tensor;
    tensor.dtype = dtype_of_array(value);
    tensor.items = array_shape(value).items;
    tensor.raw = bytes_of_array(value);
    tensor.text = sha256_hex(tensor.raw);
    return torch_name_of(tensor.dtype).empty() ? std::nullopt : std::optional(std::move(tensor));
  }
  Value out = value;
  const auto replace = [](Value& item) {
    auto with = with_tensors(item);
    const bool done = with.has_value();
    if (done) item = *std::move(with);
    return done;
  };
  for (Value& item : out.items)
    if (!replace(item)) return std::nullopt;
  for (auto& [key, item] : out.entries)
    if (!replace(item)) return std::nullopt;
  return out;
}

}  // namespace ebb::formats
