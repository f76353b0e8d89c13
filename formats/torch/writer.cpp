#include "formats/torch/writer.h"

#include <algorithm>
#include <string>
#include <vector>

#include "formats/core/crc32c.h"
#include "formats/core/units.h"
#include "formats/torch/pickle_writer.h"
#include "formats/torch/tensor.h"

namespace formats {
namespace {

constexpr std::uint64_t kAlign = 64;
constexpr std::uint64_t kFull32 = 0xffffffffu;
constexpr std::uint16_t kUtf8Flag = 0x0800;
constexpr std::uint16_t kDescriptorFlag = 0x0008;
constexpr std::uint16_t kNeedsZip64 = 45;
constexpr std::uint16_t kNeedsPlain = 20;

std::uint32_t capped(std::uint64_t value) {
  return static_cast<std::uint32_t>(std::min(value, kFull32));
}

// Lays records out one after another. `out` holds the literal bytes since the last skip().
class ZipLayout {
 public:
  void begin(std::string_view name, std::uint64_t size) {
    Entry entry{"archive/" + std::string(name), size, cursor(), 0};
    const bool wide = size >= kFull32;
    const std::uint64_t fixed = 30 + entry.name.size() + (wide ? 20 : 0) + 4;
    const std::uint64_t padding = align_up(cursor() + fixed, kAlign) - cursor() - fixed;
    append_le(out_, std::uint32_t{0x04034b50});
    append_le(out_, wide ? kNeedsZip64 : kNeedsPlain);
    append_le(out_, flags(entry));
    for (int i = 0; i < 3; ++i) append_le(out_, std::uint16_t{0});  // stored; no time, no date
    append_le(out_, std::uint32_t{0});  // the CRC stands in the descriptor and the directory
    append_le(out_, wide ? capped(kFull32) : std::uint32_t{0});
    append_le(out_, wide ? capped(kFull32) : std::uint32_t{0});
    append_le(out_, static_cast<std::uint16_t>(entry.name.size()));
    append_le(out_, static_cast<std::uint16_t>((wide ? 20 : 0) + 4 + padding));
    append_text(out_, entry.name);
    if (wide) append_zip64(size, 2, 0, 0);
    append_text(out_, "FB");
    append_le(out_, static_cast<std::uint16_t>(padding));
    out_.insert(out_.end(), padding, std::byte{'Z'});
    entries_.push_back(std::move(entry));
  }

  void end(std::uint32_t crc) {
    Entry& entry = entries_.back();
    entry.crc = crc;
    if (entry.size == 0) return;
    append_le(out_, std::uint32_t{0x08074b50});
    append_le(out_, crc);
    for (int i = 0; i < 2; ++i) {
      if (entry.size >= kFull32)
        append_le(out_, entry.size);
      else
        append_le(out_, static_cast<std::uint32_t>(entry.size));
    }
  }

  void add(std::string_view name, ByteView bytes) {
    begin(name, bytes.size());
    append_bytes(out_, bytes);
    end(crc32_zip(0, bytes));
  }

  // The bytes so far; what follows begins `size` bytes further on.
  ByteVector skip(std::uint64_t size) {
    skipped_ += out_.size() + size;
    return std::exchange(out_, {});
  }

  ByteVector close() {
    const std::uint64_t directory = cursor();
    for (const Entry& entry : entries_) append_central(entry);
    const std::uint64_t end_at = cursor();
    const std::uint64_t count = entries_.size();
    append_le(out_, std::uint32_t{0x06064b50});
    append_le(out_, std::uint64_t{44});
    append_le(out_, kNeedsZip64);
    append_le(out_, kNeedsZip64);
    append_le(out_, std::uint64_t{0});  // this volume, and the one with the directory
    append_le(out_, count);
    append_le(out_, count);
    append_le(out_, end_at - directory);
    append_le(out_, directory);
    append_le(out_, std::uint32_t{0x07064b50});
    append_le(out_, std::uint32_t{0});
    append_le(out_, end_at);
    append_le(out_, std::uint32_t{1});
    append_le(out_, std::uint32_t{0x06054b50});
    append_le(out_, std::uint32_t{0});
    const auto count16 = static_cast<std::uint16_t>(std::min<std::uint64_t>(count, 0xffff));
    append_le(out_, count16);
    append_le(out_, count16);
    append_le(out_, capped(end_at - directory));
    append_le(out_, capped(directory));
    append_le(out_, std::uint16_t{0});
    return std::move(out_);
  }

 private:
  struct Entry {
    std::string name;
    std::uint64_t size = 0;
    std::uint64_t header_at = 0;
    std::uint32_t crc = 0;
  };

  static std::uint16_t flags(const Entry& entry) {
    return static_cast<std::uint16_t>(kUtf8Flag | (entry.size > 0 ? kDescriptorFlag : 0));
  }
  std::uint64_t cursor() const { return skipped_ + out_.size(); }

  // `sizes` copies of size and `offsets` of the header's offset, in that order.
  void append_zip64(std::uint64_t size, int sizes, std::uint64_t header_at, int offsets) {
    append_le(out_, std::uint16_t{1});
    append_le(out_, static_cast<std::uint16_t>(8 * (sizes + offsets)));
    for (int i = 0; i < sizes; ++i) append_le(out_, size);
    for (int i = 0; i < offsets; ++i) append_le(out_, header_at);
  }

  void append_central(const Entry& entry) {
    const int sizes = entry.size >= kFull32 ? 2 : 0;
    const int offsets = entry.header_at >= kFull32 ? 1 : 0;
    const int extra = sizes + offsets > 0 ? 4 + 8 * (sizes + offsets) : 0;
    append_le(out_, std::uint32_t{0x02014b50});
    append_le(out_, std::uint16_t{0});
    append_le(out_, extra > 0 ? kNeedsZip64 : kNeedsPlain);
    append_le(out_, flags(entry));
    for (int i = 0; i < 3; ++i) append_le(out_, std::uint16_t{0});
    append_le(out_, entry.crc);
    append_le(out_, capped(entry.size));
    append_le(out_, capped(entry.size));
    append_le(out_, static_cast<std::uint16_t>(entry.name.size()));
    append_le(out_, static_cast<std::uint16_t>(extra));
    append_le(out_, std::uint16_t{0});  // comment
    append_le(out_, std::uint16_t{0});  // volume
    append_le(out_, std::uint16_t{0});  // attributes
    append_le(out_, std::uint32_t{0});
    append_le(out_, capped(entry.header_at));
    append_text(out_, entry.name);
    if (extra > 0) append_zip64(entry.size, sizes, entry.header_at, offsets);
  }

  std::vector<Entry> entries_;
  ByteVector out_;
  std::uint64_t skipped_ = 0;
};

std::vector<std::uint64_t> dense_strides(const Shape& shape) {
  std::vector<std::uint64_t> strides(shape.size(), 1);
  for (std::size_t i = shape.size(); i-- > 1;)
    strides[i - 1] = strides[i] * std::max<std::uint64_t>(shape[i], 1);
  return strides;
}

void pickle_tensor(PickleWriter& pickle, DType dtype, const Shape& shape, std::string_view key) {
  const std::string_view storage = torch_storage_of(dtype);
  const bool typed = !storage.empty();
  const std::uint64_t elems = volume(shape);
  pickle.global("torch._utils", typed ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
  pickle.mark();
  pickle.mark();
  pickle.string("storage");
  if (typed)
    pickle.global("torch", storage);
  else
    pickle.global("torch.storage", "UntypedStorage");
  pickle.string(key);
  pickle.string("cpu");
  pickle.integer(static_cast<std::int64_t>(typed ? elems : elems * bytes_of(dtype)));
  pickle.tuple();
  pickle.persistent();
  pickle.integer(0);
  pickle.int_tuple(shape);
  pickle.int_tuple(dense_strides(shape));
  pickle.boolean(0);  // requires_grad
  pickle.global("collections", "OrderedDict");
  pickle.empty_tuple();
  pickle.reduce();  // no backward hooks
  if (!typed) pickle.global("torch", torch_name_of(dtype));
  pickle.tuple();
  pickle.reduce();
}

void begin_archive(ZipLayout& zip, const ByteVector& pickle) {
  zip.add("data.pkl", pickle);
  zip.add(".format_version", view_of("1"));
  zip.add(".storage_alignment", view_of("64"));
  zip.add("byteorder", view_of("little"));
}

ZipLayout begin_tensor_archive(DType dtype, const Shape& shape) {
  PickleWriter pickle;
  pickle_tensor(pickle, dtype, shape, "0");
  ZipLayout zip;
  begin_archive(zip, pickle.finish());
  zip.begin("data/0", volume(shape) * bytes_of(dtype));
  return zip;
}

class ValueWriter {
 public:
  explicit ValueWriter(PickleWriter& pickle) : pickle_(pickle) {}
  const std::vector<const Value*>& tensors() const { return tensors_; }

  // REQUIRES: unwritable_part(value) is empty.
  void write(const Value& value) {
    switch (value.kind) {
      case Value::Kind::none:
        return pickle_.none();
      case Value::Kind::boolean:
        return pickle_.boolean(value.integer);
      case Value::Kind::integer:
        return pickle_.integer(value.integer);
      case Value::Kind::big_integer:
        return pickle_.big_integer(value.text);
      case Value::Kind::real:
        return pickle_.real(value.real);
      case Value::Kind::complex:
        return complex(value);
      case Value::Kind::string:
        return pickle_.string(value.text);
      case Value::Kind::bytes:
        return pickle_.bytes(value.raw);
      case Value::Kind::list:
        return list(value);
      case Value::Kind::tuple:
        return tuple(value);
      case Value::Kind::set:
        pickle_.global("__builtin__", "set");
        list(value);
        pickle_.tuple1();
        return pickle_.reduce();
      case Value::Kind::dict:
        return dict(value);
      case Value::Kind::size:
        return pickle_.torch_size(shape_of(value));
      case Value::Kind::dtype:
        return pickle_.global("torch", torch_name_of(value.dtype));
      case Value::Kind::tensor:
        pickle_tensor(pickle_, value.dtype, shape_of(value), std::to_string(tensors_.size()));
        return tensors_.push_back(&value);
      case Value::Kind::object:
        CHECK(false);
    }
  }

 private:
  static Shape shape_of(const Value& value) {
    Shape shape;
    for (const Value& item : value.items) shape.push_back(static_cast<std::uint64_t>(item.integer));
    return shape;
  }
  void complex(const Value& value) {
    pickle_.global("__builtin__", "complex");
    pickle_.mark();
    pickle_.real(value.real);
    pickle_.real(value.imaginary);
    pickle_.tuple();
    pickle_.reduce();
  }
  void list(const Value& value) {
    pickle_.empty_list();
    pickle_.mark();
    for (const Value& item : value.items) write(item);
    pickle_.appends();
  }
  void tuple(const Value& value) {
    if (value.items.empty()) return pickle_.empty_tuple();
    pickle_.mark();
    for (const Value& item : value.items) write(item);
    pickle_.tuple();
  }
  void dict(const Value& value) {
    pickle_.empty_dict();
    pickle_.mark();
    for (const auto& [key, item] : value.entries) {
      write(key);
      write(item);
    }
    pickle_.setitems();
  }

  PickleWriter& pickle_;
  std::vector<const Value*> tensors_;
};

}  // namespace

ByteVector TensorArchiveWriter::head() const {
  return begin_tensor_archive(dtype_, shape_).skip(0);
}

ByteVector TensorArchiveWriter::tail(std::uint32_t crc) const {
  ZipLayout zip = begin_tensor_archive(dtype_, shape_);
  zip.skip(data_bytes());
  zip.end(crc);
  zip.add("version", view_of("3\n"));
  return zip.close();
}

std::string_view unwritable_part(const Value& value) {
  if (value.kind == Value::Kind::object) return value.text;
  const bool has_dtype = value.kind == Value::Kind::dtype || value.kind == Value::Kind::tensor;
  if (has_dtype && torch_name_of(value.dtype).empty()) return name_of(value.dtype);
  // A tensor known by its digest only.
  if (value.kind == Value::Kind::tensor) {
    std::uint64_t bytes = bytes_of(value.dtype);
    for (const Value& item : value.items) bytes *= static_cast<std::uint64_t>(item.integer);
    if (bytes != value.raw.size()) return "tensor";
    return {};
  }
  for (const Value& item : value.items)
    if (const auto part = unwritable_part(item); !part.empty()) return part;
  for (const auto& [key, item] : value.entries) {
    if (const auto part = unwritable_part(key); !part.empty()) return part;
    if (const auto part = unwritable_part(item); !part.empty()) return part;
  }
  return {};
}

Result<ByteVector> value_archive(const Value& value) {
  if (const std::string_view part = unwritable_part(value); !part.empty())
    return Error{Code::unsupported,
                 "a value holds an object of class " + std::string(part) +
                     ", of which only the name is known",
                 {}};
  PickleWriter pickle;
  ValueWriter writer(pickle);
  writer.write(value);
  ZipLayout zip;
  begin_archive(zip, pickle.finish());
  for (std::size_t i = 0; i < writer.tensors().size(); ++i)
    zip.add("data/" + std::to_string(i), writer.tensors()[i]->raw);
  zip.add("version", view_of("3\n"));
  return zip.close();
}

}  // namespace formats
