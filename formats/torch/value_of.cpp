#include <algorithm>

#include "ebb/formats/catalog/value_alike.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/sha256.h"
#include "ebb/formats/pickle/known_globals.h"
#include "ebb/formats/torch/archive.h"
#include "ebb/formats/torch/numpy_array.h"
#include "ebb/formats/torch/unread.h"

namespace ebb::formats {
namespace {

constexpr std::size_t kMaxDepth = 256;
constexpr std::uint64_t kMaxParts = 1u << 20;

// Two's complement, little-endian, to decimal.
std::string decimal_of(std::string_view bytes) {
  std::vector<std::uint8_t> magnitude(bytes.begin(), bytes.end());
  const bool negative = !magnitude.empty() && (magnitude.back() & 0x80u) != 0;
  if (negative) {
    unsigned carry = 1;
    for (std::uint8_t& byte : magnitude) {
      const unsigned flipped = (static_cast<unsigned>(byte) ^ 0xffu) + carry;
      byte = static_cast<std::uint8_t>(flipped & 0xffu);
      carry = flipped >> 8;
    }
  }
  std::string digits;
  while (std::any_of(magnitude.begin(), magnitude.end(), [](std::uint8_t b) { return b != 0; })) {
    unsigned rest = 0;
    for (std::size_t i = magnitude.size(); i-- > 0;) {
      const unsigned value = (rest << 8) | magnitude[i];
      magnitude[i] = static_cast<std::uint8_t>(value / 10);
      rest = value % 10;
    }
    digits += static_cast<char>('0' + rest);
  }
  if (digits.empty()) return "0";
  if (negative) digits += '-';
  std::reverse(digits.begin(), digits.end());
  return digits;
}

class Converter {
 public:
  // `unread`: takes the tensors that are not read; nullptr: one of them is an error.
  Converter(const PickleGraph& graph, const TorchArchive* archive,
            std::vector<UnreadInside>* unread)
      : graph_(graph), archive_(archive), unread_(unread) {}

  // True where the node is left to the list of those that are not read.
  bool leave(PickleId id) {
    if (unread_ == nullptr || !is_torch_tensor(graph_, id)) return false;
    auto form = unread_form(graph_, id);
    if (!form) return false;
    unread_->push_back({place_, std::move(*form)});
    return true;
  }

  Result<Value> convert(PickleId id) {
    if (++parts_ > kMaxParts)
      return bad(Code::limit, "more than 1048576 parts in one value, which is the limit");
    if (path_.size() >= kMaxDepth)
      return bad(Code::limit, "a value nested deeper than 256 levels, or inside itself");
    EBB_TRY(graph_.charge(sizeof(Value) + text_bytes(id)));
    path_.push_back(id);
    Result<Value> value = of_kind(id);
    path_.pop_back();
    return value;
  }

 private:
  Error bad(Code code, std::string_view why) const {
    return Error{code, compose("{}: {}", graph_.where(), why)};
  }

  std::uint64_t text_bytes(PickleId id) const {
    const PickleKind kind = graph_.kind(id);
    const bool text = kind == PickleKind::string || kind == PickleKind::bytes ||
                      kind == PickleKind::big_integer || kind == PickleKind::global;
    return text ? graph_.text(id).size() : 0;
  }

  Result<Value> of_kind(PickleId id) {
    Value value;
    switch (graph_.kind(id)) {
      case PickleKind::none:
        return value;
      case PickleKind::boolean:
        return Value::of_bool(graph_.integer(id) != 0);
      case PickleKind::integer:
        return Value::of_int(graph_.integer(id));
      case PickleKind::big_integer:
        value.kind = Value::Kind::big_integer;
        value.text = decimal_of(graph_.text(id));
        return value;
      case PickleKind::real:
        return Value::of_real(graph_.real(id));
      case PickleKind::string:
        return Value::of_string(std::string(graph_.text(id)));
      case PickleKind::bytes: {
        const ByteView bytes = view_of(graph_.text(id));
        return Value::of_bytes({bytes.begin(), bytes.end()});
      }
      case PickleKind::tuple:
        return sequence(id, Value::Kind::tuple);
      case PickleKind::list:
        return sequence(id, Value::Kind::list);
      case PickleKind::set:
        return sequence(id, Value::Kind::set);
      case PickleKind::dict:
        return dict(id);
      case PickleKind::global:
        return name(graph_.text(id));
      case PickleKind::object:
        return object(id);
      case PickleKind::persistent:
        return name("torch.storage");
    }
    return value;
  }

  Result<Value> sequence(PickleId id, Value::Kind kind) {
    Value value;
    value.kind = kind;
    value.items.reserve(std::min<std::size_t>(graph_.items(id).size(), kMaxParts));
    for (const PickleId item : graph_.items(id)) {
      place_.emplace_back(static_cast<std::int64_t>(value.items.size()));
      Value part;
      if (!leave(item)) {
        EBB_TRY_ASSIGN(part, convert(item));
      }
      value.items.push_back(std::move(part));
      place_.pop_back();
    }
    return value;
  }

  Result<Value> dict(PickleId id) {
    Value value = Value::of_dict();
    const std::span<const PickleId> entries = graph_.items(id);
    value.entries.reserve(std::min<std::size_t>(entries.size() / 2, kMaxParts));
    std::vector<std::string_view> keys;
    for (std::size_t i = 0; i + 1 < entries.size(); i += 2) {
      if (graph_.is(entries[i], PickleKind::string)) keys.push_back(graph_.text(entries[i]));
      EBB_TRY_ASSIGN(Value key, convert(entries[i]));
      place_.push_back(item_of(key));
      if (!leave(entries[i + 1])) {
        EBB_TRY_ASSIGN(Value item, convert(entries[i + 1]));
        value.entries.emplace_back(std::move(key), std::move(item));
      }
      place_.pop_back();
    }
    std::sort(keys.begin(), keys.end());
    const auto twice = std::adjacent_find(keys.begin(), keys.end());
    if (twice != keys.end())
      return bad(Code::corrupt, "a dict holds the key '" + printable(*twice) + "' twice");
    return value;
  }

  static PathItem item_of(const Value& key) {
    if (key.kind == Value::Kind::integer) return key.integer;
    return key_text(key);
  }

  Result<Value> name(std::string_view global) {
    if (const std::optional<DType> dtype = torch_dtype_named(global))
      return Value::of_dtype(*dtype);
    Value value;
    value.kind = Value::Kind::object;
    value.text = global;
    return value;
  }

  Result<Value> object(PickleId id) {
    const std::string_view callee = graph_.class_name(id);
    const std::span<const PickleId> args = graph_.items(graph_.args(id));
    if (archive_ != nullptr && is_torch_tensor(graph_, id)) return tensor(id);
    if (callee == "torch.Size") {
      const std::optional<Shape> shape = torch_shape(graph_, id);
      if (!shape) return bad(Code::corrupt, "a torch.Size of something that is not sizes");
      return size(*shape, Value::Kind::size);
    }
    const bool complex = callee == "builtins.complex" || callee == "__builtin__.complex";
    if (complex && args.size() == 2 && graph_.is(args[0], PickleKind::real) &&
        graph_.is(args[1], PickleKind::real)) {
      Value value;
      value.kind = Value::Kind::complex;
      value.real = graph_.real(args[0]);
      value.imaginary = graph_.real(args[1]);
      return value;
    }
    if (callee.empty()) return name(kCallOfAResult);
    const bool member = callee == "builtins.getattr" || callee == "__builtin__.getattr";
    if (member && args.size() == 2 && graph_.is(args[0], PickleKind::global) &&
        is_enumeration(graph_.text(args[0])))
      return name(graph_.text(args[0]));
    if (is_data_class(callee)) return data_object(id);
    if (auto array = numpy_array(graph_, id)) {
      EBB_TRY(graph_.charge(array->items[1].raw.size()));
      return *std::move(array);
    }
    const std::string_view unsafe =
        is_known_global(callee) ? unsafe_name_below(graph_, id) : callee;
    return name(unsafe.empty() ? callee : unsafe);
  }

  Result<Value> data_object(PickleId id) {
    EBB_TRY_ASSIGN(Value value, name(graph_.class_name(id)));
    EBB_TRY_ASSIGN(Value arguments, sequence(graph_.args(id), Value::Kind::tuple));
    Value state;
    if (graph_.state(id) != kNoPickle) {
      EBB_TRY_ASSIGN(state, convert(graph_.state(id)));
    }
    value.items.push_back(std::move(arguments));
    value.items.push_back(std::move(state));
    return value;
  }

  static Value size(const Shape& shape, Value::Kind kind) {
    Value value;
    value.kind = kind;
    for (const std::uint64_t extent : shape)
      value.items.push_back(Value::of_int(static_cast<std::int64_t>(extent)));
    return value;
  }

  Result<Value> tensor(PickleId id) {
    EBB_TRY_ASSIGN(const TorchTensor what, torch_tensor(graph_, id));
    EBB_TRY_ASSIGN(ByteVector elements, archive_->value_elements(what));
    Value value = size(what.shape, Value::Kind::tensor);
    value.dtype = what.dtype;
    value.text = sha256_hex(elements);
    value.raw = std::move(elements);
    return value;
  }

  const PickleGraph& graph_;
  const TorchArchive* archive_;
  std::vector<UnreadInside>* unread_;
  std::vector<PathItem> place_;  // from the value
  std::vector<PickleId> path_;
  std::uint64_t parts_ = 0;
};

}  // namespace

Result<Value> value_of(const PickleGraph& graph, PickleId id, const TorchArchive* archive) {
  return Converter(graph, archive, nullptr).convert(id);
}

Result<ReadablePart> readable_part_of(const PickleGraph& graph, PickleId id,
                                      const TorchArchive& archive) {
  ReadablePart part;
  Converter converter(graph, &archive, &part.unread);
  if (converter.leave(id)) return part;
  EBB_TRY_ASSIGN(part.value, converter.convert(id));
  return part;
}

}  // namespace ebb::formats
