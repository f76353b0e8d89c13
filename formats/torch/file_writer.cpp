#include "ebb/formats/torch/file_writer.h"

#include <algorithm>
#include <array>
#include <cstring>

#include "ebb/formats/core/check.h"
#include "ebb/formats/core/crc32c.h"
#include "ebb/formats/pickle/pickle.h"
#include "ebb/formats/torch/numpy_array.h"
#include "ebb/formats/torch/tensor.h"
#include "ebb/formats/zip/zip_layout.h"

namespace ebb::formats {
namespace {

Shape shape_of(const Value& value) {
  Shape shape;
  for (const Value& item : value.items) shape.push_back(static_cast<std::uint64_t>(item.integer));
  return shape;
}

// What every archive of torch.save consists of.
struct TorchRecord {
  std::string_view name;
  ByteVector bytes;
};

TorchRecord text_record(std::string_view name, std::string_view text) {
  const ByteView bytes = view_of(text);
  return {name, {bytes.begin(), bytes.end()}};
}

// Before and after the records of the storages.
std::array<TorchRecord, 4> leading_records(ByteVector pickle) {
  return {TorchRecord{"data.pkl", std::move(pickle)}, text_record(".format_version", "1"),
          text_record(".storage_alignment", "64"), text_record("byteorder", "little")};
}

TorchRecord last_record() { return text_record("version", "3\n"); }

Shape dense_strides(const Shape& shape) {
  Shape strides(shape.size(), 1);
  for (std::size_t i = shape.size(); i-- > 1;)
    strides[i - 1] = strides[i] * std::max<std::uint64_t>(shape[i], 1);
  return strides;
}

struct PickledStorage {
  DType dtype = DType::f32;
  std::uint64_t elems = 0;
  std::string key;
};
// A dense tensor that begins at element `first` of the storage. REQUIRES: torch_name_of(dtype) is
// not empty.
void pickle_tensor(PickleWriter& pickle, const PickledStorage& storage, std::uint64_t first,
                   const Shape& shape) {
  const std::string_view name = torch_storage_of(storage.dtype);
  const bool typed = !name.empty();
  const auto stored = [&] {
    pickle.string("storage");
    typed ? pickle.global("torch", name) : pickle.global("torch.storage", "UntypedStorage");
    pickle.string(storage.key);
    pickle.string("cpu");
    pickle.integer(
        static_cast<std::int64_t>(typed ? storage.elems : storage.elems * bytes_of(storage.dtype)));
  };
  pickle.call("torch._utils", typed ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3", [&] {
    pickle.persistent([&] { pickle.tuple(stored); });
    pickle.integer(static_cast<std::int64_t>(first));
    pickle.int_tuple(shape);
    pickle.int_tuple(dense_strides(shape));
    pickle.boolean(0);                          // requires_grad
    pickle.call("collections", "OrderedDict");  // no backward hooks
    if (!typed) pickle.global("torch", torch_name_of(storage.dtype));
  });
}

// Fragments of an archive, and which CRC32s its directory needs: known ones, or those of ranges
// that are streamed.
class Assembly {
 public:
  explicit Assembly(std::string folder) : zip_(std::move(folder)) {}

  void record(std::string_view name, ByteView bytes) {
    literal(zip_.record(name, bytes));
    crcs_.push_back(crc32_zip(0, bytes));
  }

  void begin(std::string_view name, std::uint64_t bytes) {
    literal(zip_.begin(name, bytes));
    data_ = {file_.size, bytes};
    streamed_ = false;
  }
  void add(DType dtype, StoragePart&& part, std::uint64_t elems) {
    const std::uint64_t bytes = elems * bytes_of(dtype);
    if (auto* known = std::get_if<ByteVector>(&part)) return literal(std::move(*known));
    streamed_ = true;
    if (auto* data = std::get_if<TensorData>(&part); data != nullptr && bytes > 0)
      put(std::move(*data));
    file_.size += bytes;  // zeros are gaps
  }
  void end() {
    EBB_CHECK(file_.size == data_.offset + data_.size);
    if (data_.size == 0) return crcs_.push_back(0);
    if (!streamed_) {
      const auto& known = std::get<ByteVector>(file_.fragments.back().data);
      const std::uint32_t crc = crc32_zip(0, ByteView(known).last(data_.size));
      crcs_.push_back(crc);
      return literal(zip_.end(crc));
    }
    const ByteVector sized = zip_.end(0);
    over_.push_back(data_);
    unknown_.push_back(crcs_.size());
    crcs_.push_back(0);
    seal({data_}, sized.size(), [sized](std::span<const std::uint32_t> crcs) {
      ByteVector bytes = sized;
      std::memcpy(&bytes[4], crcs.data(), 4);
      return bytes;
    });
  }

  OutputFile close(std::string name, Rank writer) {
    const auto directory = [zip = zip_, known = crcs_,
                            unknown = unknown_](std::span<const std::uint32_t> streamed) {
      std::vector<std::uint32_t> crcs = known;
      for (std::size_t i = 0; i < unknown.size(); ++i) crcs[unknown[i]] = streamed[i];
      return zip.directory(crcs);
    };
    if (unknown_.empty()) {
      literal(directory({}));
    } else {
      const std::vector<std::uint32_t> any(unknown_.size(), 0);
      seal(over_, directory(any).size(), directory);
    }
    file_.name = std::move(name);
    file_.writer = writer;
    return std::move(file_);
  }

 private:
  // In place: of a fragment that is moved in gcc 12 believes that it is not initialized.
  template <typename Data>
  void put(Data data) {
    Fragment& fragment = file_.fragments.emplace_back();
    fragment.offset = file_.size;
    fragment.data.emplace<Data>(std::move(data));
  }
  void literal(ByteVector bytes) {
    if (bytes.empty()) return;
    if (!file_.fragments.empty()) {
      Fragment& last = file_.fragments.back();
      auto* before = std::get_if<ByteVector>(&last.data);
      if (before != nullptr && last.offset + before->size() == file_.size) {
        append_bytes(*before, bytes);
        file_.size += bytes.size();
        return;
      }
    }
    const std::uint64_t size = bytes.size();
    put(std::move(bytes));
    file_.size += size;
  }
  void seal(std::vector<FileRange> over, std::uint64_t size,
            std::function<ByteVector(std::span<const std::uint32_t>)> bytes) {
    put(Sealed{size, std::move(over), std::move(bytes)});
    file_.size += size;
  }

  ZipLayout zip_;
  OutputFile file_;
  FileRange data_;         // of the record being written
  bool streamed_ = false;  // some of it is not known yet
  std::vector<std::uint32_t> crcs_;
  std::vector<FileRange> over_;
  std::vector<std::size_t> unknown_;  // positions in crcs_
};

// Up to the first element; `crcs`: of the records so far, and 0 for the tensor's.
struct Begun {
  ZipLayout zip;
  ByteVector head;
  std::vector<std::uint32_t> crcs;
};

Begun begin_tensor(DType dtype, const Shape& shape) {
  PickleWriter pickle;
  pickle_tensor(pickle, {dtype, volume(shape), "0"}, 0, shape);
  Begun begun;
  for (const TorchRecord& record : leading_records(pickle.finish())) {
    append_bytes(begun.head, begun.zip.record(record.name, record.bytes));
    begun.crcs.push_back(crc32_zip(0, record.bytes));
  }
  append_bytes(begun.head, begun.zip.begin("data/0", volume(shape) * bytes_of(dtype)));
  begun.crcs.push_back(0);
  return begun;
}

}  // namespace

std::uint64_t TorchFileWriter::elems_of(DType dtype, const StoragePart& part) const {
  if (const auto* known = std::get_if<ByteVector>(&part)) return known->size() / bytes_of(dtype);
  if (const auto* zeros = std::get_if<ZeroElems>(&part)) return zeros->count;
  const auto& data = std::get<TensorData>(part);
  EBB_CHECK(written_dtype(data, content_) == dtype);
  return volume(data.box.extent);
}

std::uint32_t TorchFileWriter::add_storage(DType dtype, std::vector<StoragePart> parts) {
  Storage storage{dtype, 0, std::move(parts)};
  for (const StoragePart& part : storage.parts) storage.elems += elems_of(dtype, part);
  storages_.push_back(std::move(storage));
  return static_cast<std::uint32_t>(storages_.size() - 1);
}

void TorchFileWriter::tensor(std::uint32_t storage, std::uint64_t first, const Shape& shape) {
  pickle_tensor(*this,
                {storages_[storage].dtype, storages_[storage].elems, std::to_string(storage)},
                first, shape);
}

void TorchFileWriter::tensor(std::uint32_t content_tensor) {
  const TensorEntry& entry = content_.tensors[content_tensor];
  tensor(add_storage(entry.dtype, {TensorData{content_tensor, whole(entry.shape)}}), 0,
         entry.shape);
}

// As torch.Tensor.__reduce_ex__ spells a subclass without a storage.
void TorchFileWriter::composite(std::span<const std::uint32_t> parts) {
  const Composite& whole = *content_.tensors[parts.front()].part_of->whole;
  const std::size_t dot = whole.type.rfind('.');
  const auto type = [&] { global(whole.type.substr(0, dot), whole.type.substr(dot + 1)); };
  call("torch._tensor", "_rebuild_from_type_v2", [&] {
    global("torch._utils", "_rebuild_wrapper_subclass");
    type();
    tuple([&] {
      type();
      global("torch", torch_name_of(whole.dtype));
      int_tuple(whole.shape);
      int_tuple(dense_strides(whole.shape));
      integer(0);
      call1("torch.serialization", "_get_layout", [&] { string("torch.strided"); });
      call1("torch", "device", [&] { string("cpu"); });
      boolean(0);
    });
    dict([&] {
      for (const std::uint32_t part : parts) {
        string(content_.tensors[part].part_of->part);
        tensor(part);
      }
      for (const auto& [name, setting] : whole.settings) entry(name, setting);
    });
  });
}

void TorchFileWriter::value(const Value& value) {
  const auto items_of = [this](const Value& of) {
    return [this, &of] {
      for (const Value& item : of.items) this->value(item);
    };
  };
  switch (value.kind) {
    case Value::Kind::none:
      return none();
    case Value::Kind::boolean:
      return boolean(value.integer);
    case Value::Kind::integer:
      return integer(value.integer);
    case Value::Kind::big_integer:
      return big_integer(value.text);
    case Value::Kind::real:
      return real(value.real);
    case Value::Kind::complex:
      return call("__builtin__", "complex", [&] {
        real(value.real);
        real(value.imaginary);
      });
    case Value::Kind::string:
      return string(value.text);
    case Value::Kind::bytes:
      return bytes(value.raw);
    case Value::Kind::list:
      return list(items_of(value));
    case Value::Kind::tuple:
      return tuple(items_of(value));
    case Value::Kind::set:
      return call1("__builtin__", "set", [&] { list(items_of(value)); });
    case Value::Kind::dict:
      return dict([&] {
        for (const auto& [key, item] : value.entries) {
          this->value(key);
          this->value(item);
        }
      });
    case Value::Kind::size:
      return torch_size(shape_of(value));
    case Value::Kind::dtype:
      return global("torch", torch_name_of(value.dtype));
    case Value::Kind::tensor:
      return tensor(add_storage(value.dtype, {value.raw}), 0, shape_of(value));
    case Value::Kind::object: {  // a data class's constructor's arguments, then its attributes
      EBB_CHECK(value.items.size() == 2);
      if (is_numpy_array(value)) return write_numpy_array(*this, value);
      const std::size_t dot = value.text.rfind('.');
      call(value.text.substr(0, dot), value.text.substr(dot + 1), items_of(value.items[0]));
      const Value& state = value.items[1];
      if (state.kind != Value::Kind::none) build([&] { this->value(state); });
    }
  }
}

void TorchFileWriter::entry(std::string_view key, const Value& of) {
  string(key);
  value(of);
}

void TorchFileWriter::add_record(std::string_view name, std::string_view text) {
  records_.emplace_back(name, text);
}

OutputFile TorchFileWriter::finish(std::string name, Rank writer) {
  Assembly archive(folder_);
  for (const TorchRecord& record : leading_records(PickleWriter::finish()))
    archive.record(record.name, record.bytes);
  for (const auto& [of, text] : records_) archive.record(of, view_of(text));
  for (std::size_t i = 0; i < storages_.size(); ++i) {
    Storage& storage = storages_[i];
    archive.begin(compose("data/{}", i), storage.elems * bytes_of(storage.dtype));
    for (StoragePart& part : storage.parts) {
      const std::uint64_t elems = elems_of(storage.dtype, part);
      archive.add(storage.dtype, std::move(part), elems);
    }
    archive.end();
  }
  const TorchRecord last = last_record();
  archive.record(last.name, last.bytes);
  return archive.close(std::move(name), writer);
}

std::string_view unwritable_part(const Value& value) {
  if (is_numpy_array(value)) return {};
  if (value.kind == Value::Kind::object && !(is_data_class(value.text) && value.items.size() == 2))
    return value.text;
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

ByteVector TensorArchiveWriter::head() const { return begin_tensor(dtype_, shape_).head; }

ByteVector TensorArchiveWriter::tail(std::uint32_t crc) const {
  Begun begun = begin_tensor(dtype_, shape_);
  begun.crcs.back() = crc;
  ByteVector out = begun.zip.end(crc);
  const TorchRecord last = last_record();
  append_bytes(out, begun.zip.record(last.name, last.bytes));
  begun.crcs.push_back(crc32_zip(0, last.bytes));
  append_bytes(out, begun.zip.directory(begun.crcs));
  return out;
}

Result<ByteVector> value_archive(const Value& value) {
  if (const std::string_view part = unwritable_part(value); !part.empty())
    return Error{
        Code::unsupported,
        compose("a value holds an object of class {}, of which only the name is known", part)};
  const Catalog nothing;
  TorchFileWriter file(nothing);
  file.value(value);
  OutputFile made = file.finish("value", Rank{0});
  EBB_CHECK(made.fragments.size() == 1);  // nothing in it is streamed
  return std::get<ByteVector>(std::move(made.fragments.front().data));
}

}  // namespace ebb::formats
