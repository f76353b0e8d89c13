#include "ebb/formats/torch/file_writer.h"

#include <algorithm>
#include <cstring>

#include "ebb/formats/core/check.h"
#include "ebb/formats/core/crc32c.h"
#include "ebb/formats/pickle/pickle.h"
#include "ebb/formats/torch/tensor.h"
#include "ebb/formats/torch/torch_records.h"
#include "ebb/formats/zip/zip_layout.h"

namespace ebb::formats {
namespace {

Shape shape_of(const Value& value) {
  Shape shape;
  for (const Value& item : value.items) shape.push_back(static_cast<std::uint64_t>(item.integer));
  return shape;
}

// Inert values as Python objects.
class ValueWriter {
 public:
  explicit ValueWriter(TorchFileWriter& file) : file_(file), pickle_(file.pickle()) {}

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
        return file_.tensor(file_.add_storage(value.dtype, {value.raw}), 0, shape_of(value));
      case Value::Kind::object:
        return object(value);
    }
  }

 private:
  void complex(const Value& value) {
    pickle_.global("__builtin__", "complex");
    pickle_.mark();
    pickle_.real(value.real);
    pickle_.real(value.imaginary);
    pickle_.tuple();
    pickle_.reduce();
  }
  // Of a data class: its constructor's arguments, then its attributes.
  void object(const Value& value) {
    EBB_CHECK(value.items.size() == 2);
    const std::size_t dot = value.text.rfind('.');
    pickle_.global(value.text.substr(0, dot), value.text.substr(dot + 1));
    tuple(value.items[0]);
    pickle_.reduce();
    if (value.items[1].kind == Value::Kind::none) return;
    write(value.items[1]);
    pickle_.build();
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

  TorchFileWriter& file_;
  PickleWriter& pickle_;
};

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
      file_.fragments.push_back({file_.size, std::move(*data)});
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
    file_.fragments.push_back({file_.size, std::move(bytes)});
    file_.size += size;
  }
  void seal(std::vector<FileRange> over, std::uint64_t size,
            std::function<ByteVector(std::span<const std::uint32_t>)> bytes) {
    file_.fragments.push_back({file_.size, Sealed{size, std::move(over), std::move(bytes)}});
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
  pickle_tensor(pickle_,
                {storages_[storage].dtype, storages_[storage].elems, std::to_string(storage)},
                first, shape);
}

void TorchFileWriter::tensor(std::uint32_t content_tensor) {
  const TensorEntry& entry = content_.tensors[content_tensor];
  tensor(add_storage(entry.dtype, {TensorData{content_tensor, whole(entry.shape)}}), 0,
         entry.shape);
}

void TorchFileWriter::value(const Value& value) { ValueWriter(*this).write(value); }

OutputFile TorchFileWriter::finish(std::string name, Rank writer) {
  Assembly archive(folder_);
  for (const TorchRecord& record : leading_records(pickle_.finish()))
    archive.record(record.name, record.bytes);
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

}  // namespace ebb::formats
