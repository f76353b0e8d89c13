#include "formats/deepspeed/checkpoint.h"

#include <algorithm>

#include "formats/core/crc32c.h"
#include "formats/core/units.h"
#include "formats/torch/refuse.h"

namespace formats {
namespace {

constexpr std::uint64_t kCrcPass = 1 * MiB;

}  // namespace

Result<> DsCheckpoint::read(const TensorEntry& tensor, const Chunk& chunk, std::uint64_t first,
                            std::span<std::byte> into) const {
  const std::string label = "tensor " + tensor.name + " " + tensor.state + " of rank " +
                            std::to_string(index_of(chunk.holder));
  if (first > chunk.length || into.size() > chunk.length - first)
    return Error{
        Code::usage, label + ": a read past its " + std::to_string(chunk.length) + " bytes", {}};
  if (into.empty()) return {};
  const Record& record = records_[chunk.tag / 2];
  TRY_ASSIGN(const std::shared_ptr<const ByteSource> source,
             tree_->open(catalog_.files[chunk.file].name));
  TRY(source->read(chunk.offset + first, into));
  const bool ends_record = chunk.tag % 2 == 1 && first + into.size() == chunk.length;
  if (!ends_record || record.size == 0) return {};
  auto checked = check(record, *source);
  if (!checked) return std::move(checked).error().within(label);
  return {};
}

Result<> DsCheckpoint::check(const Record& record, const ByteSource& source) const {
  ByteVector pass(static_cast<std::size_t>(std::min(kCrcPass, record.size)));
  std::uint32_t crc = 0;
  for (std::uint64_t at = 0; at < record.size; at += pass.size()) {
    const std::span<std::byte> part =
        std::span(pass).first(std::min<std::uint64_t>(pass.size(), record.size - at));
    TRY(source.read(record.at + at, part));
    crc = crc32_zip(crc, part);
  }
  if (crc == record.crc) return {};
  return refuse(Code::corrupt, source.name(), record.at,
                "record '" + record.name + "' fails its CRC32 check");
}

Result<DsFlat> DsCheckpoint::add_flat(const TorchArchive& archive, std::uint32_t file,
                                      const TorchTensor& tensor) {
  TRY_ASSIGN(const std::optional<TorchArchive::Plain> plain, archive.plain(tensor));
  if (!plain)
    return Error{Code::unsupported,
                 std::string(archive.zip().source().name()) + ": storage '" + tensor.storage.key +
                     "' is compressed, big-endian or strided: not a file DeepSpeed writes",
                 {}};
  const ZipEntry& entry = *plain->record;
  records_.push_back({plain->record_at, entry.has_crc() ? entry.size : 0, entry.crc, entry.name});
  return DsFlat{file,
                static_cast<std::uint32_t>(records_.size() - 1),
                plain->record_at + plain->first,
                tensor.elems(),
                tensor.dtype,
                tensor.shape};
}

DsFlat DsCheckpoint::add_raw(std::uint32_t file, std::uint64_t elems) {
  records_.push_back({});
  return DsFlat{file,   static_cast<std::uint32_t>(records_.size() - 1), 0, elems, DType::f32,
                {elems}};
}

void DsCheckpoint::finish() {
  std::vector<Chunk*> last(records_.size(), nullptr);
  for (TensorEntry& tensor : catalog_.tensors)
    for (Chunk& chunk : tensor.chunks)
      if (Chunk*& best = last[chunk.tag / 2]; best == nullptr || best->offset < chunk.offset)
        best = &chunk;
  for (Chunk* chunk : last)
    if (chunk != nullptr) chunk->tag |= 1;
}

}  // namespace formats
