// torch.save files in the making: an object graph that the caller pickles, with tensors whose
// elements are streamed later. Records as torch 2.7 and newer write them: data.pkl,
// .format_version, .storage_alignment, byteorder, data/0..., version. Protocol 2 and only opcodes
// that torch.load(weights_only=True) knows.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "ebb/formats/catalog/emit.h"
#include "ebb/formats/pickle/pickle_writer.h"

namespace ebb::formats {

// Elements of a storage: of the content, known ones, or zeros.
struct ZeroElems {
  std::uint64_t count = 0;
};
using StoragePart = std::variant<TensorData, ByteVector, ZeroElems>;

// The object graph is one object, written in order by the calls of PickleWriter and those here.
class TorchFileWriter : public PickleWriter {
 public:
  // `content`: what TensorData refers to; borrowed. `folder`: torch.save calls it by the file's
  // stem.
  explicit TorchFileWriter(const Catalog& content, std::string folder = "archive")
      : content_(content), folder_(std::move(folder)) {}

  // A dense storage of `dtype`, its parts one after another. Returns the number that tensor()
  // takes. REQUIRES: written_dtype of TensorData parts is dtype; torch has a name for it.
  std::uint32_t add_storage(DType dtype, std::vector<StoragePart> parts);
  std::uint64_t storage_elems(std::uint32_t storage) const { return storages_[storage].elems; }
  // Pickles a dense tensor of `shape` that begins at element `first` of the storage.
  void tensor(std::uint32_t storage, std::uint64_t first, const Shape& shape);
  // The same for one content tensor with a storage of its own.
  void tensor(std::uint32_t content_tensor);
  // The same for one that is made of these content tensors. REQUIRES: they are all its parts, torch
  // has names for their dtypes, and what it keeps beside them can be written.
  void composite(std::span<const std::uint32_t> parts);
  // Pickles a value; tensors in it get storages of their own. REQUIRES: unwritable_part(value) is
  // empty.
  void value(const Value& value);
  using PickleWriter::entry;
  void entry(std::string_view key, const Value& of);

  // One more record, of a text, that is no part of the object graph.
  void add_record(std::string_view name, std::string_view text);

  // Call once, last.
  OutputFile finish(std::string name, Rank writer);

 private:
  struct Storage {
    DType dtype = DType::f32;
    std::uint64_t elems = 0;
    std::vector<StoragePart> parts;
  };
  std::uint64_t elems_of(DType dtype, const StoragePart& part) const;

  const Catalog& content_;
  std::string folder_;
  std::vector<Storage> storages_;
  std::vector<std::pair<std::string, std::string>> records_;  // name, text
};

// The name of the class that keeps `value` from being written; "" when it can be.
std::string_view unwritable_part(const Value& value);

// An archive of one dense tensor inside another file: head, then its row-major elements, then
// tail(crc32 of them). The bytes around the elements are known before those are; only the CRC32 is
// filled in afterwards (zip's data descriptor), so nothing is buffered or patched.
class TensorArchiveWriter {
 public:
  // REQUIRES: torch_name_of(dtype) is not empty, and the shape's volume fits.
  TensorArchiveWriter(DType dtype, Shape shape) : dtype_(dtype), shape_(std::move(shape)) {}

  ByteVector head() const;  // a multiple of 64 bytes
  std::uint64_t data_bytes() const { return volume(shape_) * bytes_of(dtype_); }
  ByteVector tail(std::uint32_t crc32_zip) const;  // its size does not depend on the CRC

 private:
  DType dtype_;
  Shape shape_;
};

// A whole archive of one value, as torch.save(value) would make it. Fails (Code::unsupported) for
// what cannot be written back: an object of which only the class name is known.
Result<ByteVector> value_archive(const Value& value);

}  // namespace ebb::formats
