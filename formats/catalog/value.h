// Value: what is not a tensor in a checkpoint (step counters, hyper-parameters, RNG blobs), inert.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ebb/formats/core/bytes.h"
#include "ebb/formats/core/dtype.h"

namespace ebb::formats {

struct Value {
  enum class Kind : std::uint8_t {
    none,
    boolean,
    integer,
    big_integer,
    real,
    complex,
    string,
    bytes,
    list,
    tuple,
    set,
    dict,
    size,    // torch.Size
    dtype,   // torch.float32
    tensor,  // a small tensor inside a value: dtype, size items, sha256 in text
    object,  // never constructed: text = "module.Class"; of data classes also items = {arguments,
             // attributes}, of others only the name
  };
  Kind kind = Kind::none;
  std::int64_t integer = 0;  // boolean, integer
  double real = 0;           // real; complex: real part
  double imaginary = 0;      // complex
  std::string text;  // string, big_integer (decimal), object, tensor (sha256), dtype via name
  ByteVector raw;    // bytes
  DType dtype = DType::f32;  // dtype, tensor
  std::vector<Value> items;  // list, tuple, set, size, tensor (its shape), object
  std::vector<std::pair<Value, Value>> entries;  // dict, in stored order

  // Out of line: here the pairs above are of a type that is not complete yet, which clang minds.
  Value();
  Value(const Value&);
  Value(Value&&) noexcept;
  Value& operator=(const Value&);
  Value& operator=(Value&&) noexcept;
  ~Value();

  static Value of_bool(bool value);
  static Value of_int(std::int64_t value);
  static Value of_real(double value);
  static Value of_string(std::string value);
  static Value of_bytes(ByteVector value);
  static Value of_list(std::vector<Value> items);
  static Value of_tuple(std::vector<Value> items);
  static Value of_dict(std::vector<std::pair<std::string, Value>> entries = {});
  static Value of_dtype(DType value);
  void add(std::string_view key, Value value);    // behind a dict's other entries
  const Value* find(std::string_view key) const;  // dict entry with that string key, else nullptr
};

// JSON with the conventions of tests/fixtures/dcp/README.md: {"$tuple": [...]}, {"$bytes": hex},
// ...
std::string to_json(const Value& value);

}  // namespace ebb::formats

namespace ebb {
using formats::Value;
}  // namespace ebb
