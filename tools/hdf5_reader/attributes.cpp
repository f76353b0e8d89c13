#include "tools/hdf5_reader/attributes.h"

#include <cstring>
#include <limits>

#include "tools/hdf5_reader/handle.h"
#include "tools/hdf5_reader/types.h"

namespace ebb::hdf5_reader {
namespace {

using formats::hdf5::Attribute;
using formats::hdf5::ElementType;
using Kind = ElementType::Kind;

constexpr std::size_t kMostAttributes = 1'000'000;  // of one object

// What values are read from: an attribute or a dataset.
struct Source {
  hid_t id;
  herr_t (*read)(hid_t id, hid_t memory_type, void* into);
  std::string where;
};

Result<std::vector<std::byte>> raw(const Source& source, hid_t memory_type, std::uint64_t count) {
  const std::uint64_t width = H5Tget_size(memory_type);
  if (width == 0 || count > kMostValueBytes / width)
    return Error{Code::limit, compose("{}: a value of {} x {} bytes; the limit is {}", source.where,
                                      count, width, kMostValueBytes)};
  std::vector<std::byte> bytes(static_cast<std::size_t>(count * width));
  if (source.read(source.id, memory_type, bytes.data()) < 0) return library_error(source.where);
  return bytes;
}

template <typename T, typename Make>
Result<std::vector<Value>> numbers(const Source& source, hid_t memory_type, std::uint64_t count,
                                   Make make) {
  EBB_TRY_ASSIGN(const std::vector<std::byte> bytes, raw(source, memory_type, count));
  std::vector<Value> values;
  for (std::size_t i = 0; i < count; ++i)
    values.push_back(make(formats::load_le<T>(ByteView(bytes).subspan(i * sizeof(T)))));
  return values;
}

Value unsigned_value(std::uint64_t number) {
  if (number <= static_cast<std::uint64_t>(std::numeric_limits<std::int64_t>::max()))
    return Value::of_int(static_cast<std::int64_t>(number));
  Value big;
  big.kind = Value::Kind::big_integer;
  big.text = std::to_string(number);
  return big;
}

Result<std::vector<Value>> variable_texts(const Source& source, hid_t type, hid_t space,
                                          std::uint64_t count) {
  EBB_TRY_ASSIGN(std::vector<std::byte> bytes, raw(source, type, count));
  std::vector<Value> values;
  for (std::size_t i = 0; i < count; ++i) {
    const char* text = nullptr;
    std::memcpy(static_cast<void*>(&text), bytes.data() + i * sizeof(text), sizeof(text));
    values.push_back(Value::of_string(text == nullptr ? "" : text));
  }
  H5Dvlen_reclaim(type, space, H5P_DEFAULT, bytes.data());
  return values;
}

Result<std::vector<Value>> fixed_texts(const Source& source, hid_t type, std::uint64_t count) {
  EBB_TRY_ASSIGN(const std::vector<std::byte> bytes, raw(source, type, count));
  const std::size_t width = H5Tget_size(type);
  const H5T_str_t padding = H5Tget_strpad(type);
  std::vector<Value> values;
  for (std::size_t i = 0; i < count; ++i) {
    std::string text(formats::text_of(ByteView(bytes).subspan(i * width, width)));
    const char pad = padding == H5T_STR_SPACEPAD ? ' ' : '\0';
    if (padding == H5T_STR_NULLTERM) text.resize(std::min(text.find('\0'), text.size()));
    text.resize(text.find_last_not_of(pad) + 1);
    values.push_back(Value::of_string(std::move(text)));
  }
  return values;
}

Value uninterpreted(const ElementType& type) {
  Value value;
  value.kind = Value::Kind::object;
  value.text = "HDF5 " + type.words;
  return value;
}

// Row-major items as lists of lists; `at` walks through them.
Value nested(const Shape& shape, std::size_t dim, std::vector<Value>& items, std::size_t& at) {
  if (dim == shape.size()) return std::move(items[at++]);
  Value list;
  list.kind = Value::Kind::list;
  for (std::uint64_t i = 0; i < shape[dim]; ++i)
    list.items.push_back(nested(shape, dim + 1, items, at));
  return list;
}

Result<Value> value_of(const Source& source, hid_t type, hid_t space) {
  const ElementType element = element_type_of(type);
  if (H5Sget_simple_extent_type(space) == H5S_NULL) return Value{};
  Shape shape(static_cast<std::size_t>(std::max(0, H5Sget_simple_extent_ndims(space))));
  std::vector<hsize_t> extents(shape.size());
  H5Sget_simple_extent_dims(space, extents.data(), nullptr);
  std::copy(extents.begin(), extents.end(), shape.begin());
  const auto count = formats::checked_volume(shape);
  if (!count) return Error{Code::corrupt, source.where + ": more elements than 64 bits count"};
  std::vector<Value> items;
  if (element.kind == Kind::integer && H5Tget_class(type) == H5T_INTEGER && element.is_signed) {
    EBB_TRY_ASSIGN(items, numbers<std::int64_t>(source, H5T_NATIVE_INT64, *count, Value::of_int));
  } else if (element.kind == Kind::integer && H5Tget_class(type) == H5T_INTEGER) {
    EBB_TRY_ASSIGN(items,
                   numbers<std::uint64_t>(source, H5T_NATIVE_UINT64, *count, unsigned_value));
  } else if (element.kind == Kind::floating && element.size <= sizeof(double)) {
    EBB_TRY_ASSIGN(items, numbers<double>(source, H5T_NATIVE_DOUBLE, *count, Value::of_real));
  } else if (element.kind == Kind::boolean) {
    EBB_TRY_ASSIGN(items, numbers<std::uint8_t>(source, type, *count, [](std::uint8_t b) {
                     return Value::of_bool(b != 0);
                   }));
  } else if (element.kind == Kind::text && H5Tis_variable_str(type) > 0) {
    EBB_TRY_ASSIGN(items, variable_texts(source, type, space, *count));
  } else if (element.kind == Kind::text) {
    EBB_TRY_ASSIGN(items, fixed_texts(source, type, *count));
  } else {
    return uninterpreted(element);
  }
  std::size_t at = 0;
  return nested(shape, 0, items, at);
}

Result<Attribute> attribute_of(hid_t object, const std::string& name, const std::string& where) {
  const Handle attribute(H5Aopen(object, name.c_str(), H5P_DEFAULT), H5Aclose);
  const Handle type(attribute ? H5Aget_type(attribute.get()) : -1, H5Tclose);
  const Handle space(attribute ? H5Aget_space(attribute.get()) : -1, H5Sclose);
  const std::string place = compose("{}: attribute '{}'", where, name);
  if (!type || !space) return library_error(place);
  EBB_TRY_ASSIGN(
      Value value,
      value_of(
          {attribute.get(),
           [](hid_t id, hid_t memory, void* into) { return H5Aread(id, memory, into); }, place},
          type.get(), space.get()));
  return Attribute{name, std::move(value)};
}

}  // namespace

Result<std::vector<Attribute>> attributes_of(hid_t object, const std::string& where) {
  std::vector<std::string> names;
  hsize_t from = 0;
  const herr_t done = H5Aiterate2(
      object, H5_INDEX_NAME, H5_ITER_NATIVE, &from,
      [](hid_t, const char* name, const H5A_info_t*, void* out) -> herr_t {
        auto& list = *static_cast<std::vector<std::string>*>(out);
        list.emplace_back(name);
        return list.size() > kMostAttributes ? 1 : 0;
      },
      &names);
  if (done < 0) return library_error(where + ": attributes");
  if (done > 0)
    return Error{Code::limit, compose("{}: more than {} attributes", where, kMostAttributes)};
  std::vector<Attribute> attributes;
  for (const std::string& name : names) {
    EBB_TRY_ASSIGN(Attribute attribute, attribute_of(object, name, where));
    attributes.push_back(std::move(attribute));
  }
  return attributes;
}

Result<Value> text_of(hid_t dataset, hid_t type, const std::string& where) {
  const Handle space(H5Dget_space(dataset), H5Sclose);
  if (!space) return library_error(where);
  const auto read = [](hid_t id, hid_t memory, void* into) {
    return H5Dread(id, memory, H5S_ALL, H5S_ALL, H5P_DEFAULT, into);
  };
  return value_of({dataset, read, where}, type, space.get());
}

}  // namespace ebb::hdf5_reader
