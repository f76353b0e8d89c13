#include "ebb/formats/safetensors/header.h"

#include <algorithm>
#include <array>

#include "ebb/formats/core/refuse.h"
#include "ebb/formats/core/units.h"
#include "ebb/formats/json/json_reader.h"

namespace ebb::formats::safetensors {
namespace {

constexpr std::uint64_t kUsualTensor = 100;  // bytes of JSON; fewer only cost growing a list

std::string interval(const HeaderTensor& tensor) {
  return compose("'{}' [{},{})", printable(tensor.key), tensor.begin, tensor.end);
}

Result<> check_size(const HeaderTensor& tensor, const json::Reader& json, json::Value where) {
  const auto name = [&] { return json::Subject("tensor", tensor.key, ": ").text(); };
  if (tensor.end < tensor.begin)
    return json.at(
        where, compose("{}data_offsets [{},{}) run backwards", name(), tensor.begin, tensor.end));
  const auto need = tensor_bytes(tensor.dtype, tensor.shape);
  if (!need) return json.at(where, name() + need.error().message);
  if (*need != tensor.end - tensor.begin)
    return json.at(where, compose("{}{} {} needs {} bytes but data_offsets give {}", name(),
                                  name_of(tensor.dtype), to_string(tensor.shape), *need,
                                  tensor.end - tensor.begin));
  return {};
}

// Reads one tensor's fields into `tensor`.
class TensorReader {
 public:
  TensorReader(json::Reader& json, std::string_view key, HeaderTensor& tensor)
      : json_(json), name_("tensor", key), tensor_(tensor) {
    tensor_.key = key;
  }

  Result<> read(json::Value value) {
    const std::size_t length = tensor_.key.size();
    if (length > kMaxKeyBytes)
      return limit(value,
                   compose(": its name has {} bytes, the limit is {}", length, kMaxKeyBytes));
    EBB_TRY(json_.fields(value, name_, [this](std::string_view field, json::Value item) {
      return take(field, item);
    }));
    if (found_ != 3) return json_.at(value, name_.text() + " lacks dtype, shape or data_offsets");
    return check_size(tensor_, json_, value);
  }

 private:
  Result<> take(std::string_view field, json::Value item) {
    ++found_;
    if (field == "dtype") return take_dtype(item);
    if (field == "shape") {
      EBB_TRY(json_.wholes(item, part(": shape"), tensor_.shape));
      if (tensor_.shape.size() <= kMaxDims) return {};
      return limit(item,
                   compose(": {} dimensions, the limit is {}", tensor_.shape.size(), kMaxDims));
    }
    if (field != "data_offsets")
      return json_.at(item, compose("{}: unknown field '{}'", name_.text(), printable(field)));
    Shape offsets;
    EBB_TRY(json_.wholes(item, part(": data_offsets"), offsets));
    if (offsets.size() != 2)
      return json_.at(item, compose("{}: data_offsets has {} numbers instead of 2", name_.text(),
                                    offsets.size()));
    tensor_.begin = offsets[0];
    tensor_.end = offsets[1];
    return {};
  }

  Result<> take_dtype(json::Value item) {
    EBB_TRY_ASSIGN(const std::string dtype, json_.string(item, part(": dtype")));
    const auto known = dtype_named(dtype);
    if (!known || *known == DType::c128)
      return Error{Code::unsupported,
                   compose("{}: dtype '{}' is not one of safetensors'",
                           json_.at(item, name_.text()).message, printable(dtype))};
    tensor_.dtype = *known;
    return {};
  }

  json::Subject part(std::string_view of_it) const { return {name_.kind, *name_.key, of_it}; }
  Error limit(json::Value where, const std::string& what) const {
    return {Code::limit, json_.at(where, name_.text()).message + what};
  }

  json::Reader& json_;
  json::Subject name_;
  HeaderTensor& tensor_;
  int found_ = 0;
};

// The data is exactly the tensors, one after the other: no holes, overlaps or trailing bytes.
Result<> check_data(const Header& header, const ByteSource& source) {
  const std::uint64_t size = source.size() - header.data_start;
  std::vector<const HeaderTensor*> order;
  order.reserve(header.tensors.size());
  for (const HeaderTensor& tensor : header.tensors) order.push_back(&tensor);
  const auto before = [](const HeaderTensor* a, const HeaderTensor* b) {
    return std::pair(a->begin, a->end) < std::pair(b->begin, b->end);
  };
  if (!std::is_sorted(order.begin(), order.end(), before))
    std::sort(order.begin(), order.end(), before);
  const auto refuse = [&](std::uint64_t at, const std::string& why) {
    const auto offset = checked_add(header.data_start, at).value_or(source.size());
    return formats::refuse(Code::corrupt, source.name(), offset, why);
  };
  const auto hole = [&](std::uint64_t from, std::uint64_t to) {
    return refuse(from, compose("bytes [{},{}) of the data belong to no tensor", from, to));
  };
  std::uint64_t covered = 0;
  const HeaderTensor* last = nullptr;
  for (const HeaderTensor* tensor : order) {
    if (tensor->begin < covered)
      return refuse(tensor->begin,
                    compose("tensors {} and {} overlap", interval(*last), interval(*tensor)));
    if (tensor->begin > covered) return hole(covered, tensor->begin);
    if (tensor->end > size) {
      Error error = refuse(size, compose("the file ends at byte {} of the data, inside tensor {}",
                                         size, interval(*tensor)));
      error.code = Code::incomplete;
      return error;
    }
    covered = tensor->end;
    last = tensor;
  }
  if (covered < size) return hole(covered, size);
  return {};
}

Result<std::uint64_t> header_length(const ByteSource& source) {
  const auto refused = [&](Code code, const std::string& why) {
    return refuse(code, source.name(), 0, why);
  };
  if (source.size() < 8)
    return refused(
        Code::incomplete,
        compose("{} bytes are too few for a safetensors file (8 for the header's length)",
                source.size()));
  std::array<std::byte, 8> raw{};
  EBB_TRY(source.read(0, raw));
  const auto length = load_le<std::uint64_t>(raw);
  if (length == 0) return refused(Code::corrupt, "the header's length is 0");
  const std::string claim = compose("the header claims {} bytes", length);
  if (length > source.size() - 8)
    return refused(Code::incomplete, claim + " but the file has fewer");
  if (length > kMaxHeaderBytes)
    return refused(Code::limit, compose("{}, the limit is {}", claim, kMaxHeaderBytes));
  return length;
}

}  // namespace

const MetadataText* Header::find_metadata(std::string_view key) const {
  for (const MetadataText& one : metadata)
    if (one.key == key) return &one;
  return nullptr;
}

Result<std::uint64_t> tensor_bytes(DType dtype, const Shape& shape) {
  const auto refuse = [&](std::string_view why) {
    return Error{Code::corrupt, compose("{} {}{}", name_of(dtype), to_string(shape), why)};
  };
  const auto elems = checked_volume(shape);
  const auto bits = elems ? checked_mul(*elems, bits_of(dtype)) : std::nullopt;
  if (!bits) return refuse(" does not fit 64 bits");
  if (*bits % 8 != 0) return refuse(" is not a whole number of bytes");
  return *bits / 8;
}

Result<Header> read_header(const ByteSource& source) {
  EBB_TRY_ASSIGN(const std::uint64_t length, header_length(source));
  ByteVector text(length + json::Reader::padding);
  EBB_TRY(source.read(8, std::span(text).first(length)));
  if (text.front() != std::byte{'{'})
    return Error{Code::corrupt, compose("{}:8: the header does not begin with '{'", source.name())};
  json::Reader json({std::string(source.name()), 8, "the header"}, std::move(text));
  Header header;
  header.data_start = 8 + length;
  header.tensors.reserve(length / kUsualTensor);
  const auto visit = [&](std::string_view key, json::Value value) -> Result<> {
    if (key != "__metadata__") {
      return TensorReader(json, key, header.tensors.emplace_back()).read(value);
    }
    return json.fields(value, "__metadata__", [&](std::string_view name, json::Value item) {
      const std::uint64_t offset = json.offset_of(item);
      auto string = json.string(item, {"__metadata__:", name});
      if (!string) return Result<>(std::move(string).error());
      header.metadata.push_back({std::string(name), std::move(*string), offset});
      return Result<>();
    });
  };
  EBB_TRY(json.read(visit));
  EBB_TRY(check_data(header, source));
  return header;
}

}  // namespace ebb::formats::safetensors
