#include "ebb/formats/state_dict/plain_numbers.h"

#include "ebb/formats/core/element_values.h"
#include "ebb/formats/core/float_cast.h"
#include "ebb/formats/core/sha256.h"

namespace ebb::formats {

std::optional<Value> number_in(DType dtype, ByteView element) {
  if (values_per_element(dtype) != 1) return std::nullopt;
  if (dtype == DType::i64) return Value::of_int(load_le<std::int64_t>(element));
  double number = 0;
  element_values(dtype, element, {&number, 1});
  if (is_floating(dtype)) return Value::of_real(number);
  if (dtype == DType::boolean) return Value::of_bool(number != 0);
  constexpr double kExact = 9007199254740992;  // 2^53
  if (number > kExact) return std::nullopt;
  return Value::of_int(static_cast<std::int64_t>(number));
}

Value with_plain_numbers(Value value) {
  if (value.kind == Value::Kind::tensor && value.raw.size() == bytes_of(value.dtype))
    return number_in(value.dtype, value.raw).value_or(std::move(value));
  if (value.kind == Value::Kind::tensor) return value;
  for (Value& item : value.items) item = with_plain_numbers(std::move(item));
  for (auto& [key, entry] : value.entries) entry = with_plain_numbers(std::move(entry));
  return value;
}

Value with_tensors(Value value, DType dtype) {
  if (value.kind != Value::Kind::real) {
    for (Value& item : value.items) item = with_tensors(std::move(item), dtype);
    return value;
  }
  ByteVector number;
  append_le(number, value.real);
  Value tensor;
  tensor.kind = Value::Kind::tensor;
  tensor.dtype = dtype;
  tensor.raw.resize(bytes_of(dtype));
  cast_floats(DType::f64, number, dtype, tensor.raw);
  const auto kept = number_in(dtype, tensor.raw);
  if (!kept || kept->real != value.real) tensor.dtype = DType::f64, tensor.raw = std::move(number);
  tensor.text = sha256_hex(tensor.raw);
  return tensor;
}

}  // namespace ebb::formats
