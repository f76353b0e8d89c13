#include "ebb/formats/torch/writer.h"

#include <array>
#include <string>

#include "ebb/formats/core/check.h"
#include "ebb/formats/core/crc32c.h"
#include "ebb/formats/torch/file_writer.h"
#include "ebb/formats/torch/torch_records.h"
#include "ebb/formats/zip/zip_layout.h"

namespace ebb::formats {
namespace {

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
