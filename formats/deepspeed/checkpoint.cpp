#include "ebb/formats/deepspeed/checkpoint.h"

#include <algorithm>

namespace ebb::formats::deepspeed {
namespace {

constexpr unsigned kRecordBits = 32;  // of a chunk's tag; above them the chunk's own number

}  // namespace

Result<> ZeroCheckpoint::read_chunk(const TensorEntry& tensor, const Chunk& chunk,
                                    std::uint64_t first, std::span<std::byte> into) const {
  const std::string label =
      compose("tensor {} {} of rank {}", tensor.name, tensor.state, index_of(chunk.holder));
  const auto number = static_cast<std::uint32_t>(chunk.tag);
  const CheckedRecord& record = records_[number];
  EBB_TRY_ASSIGN(const std::shared_ptr<const ByteSource> source,
                 tree_->open(catalog_.files[chunk.file].name));
  EBB_TRY(source->read(chunk.offset + first, into));
  if (record.size == 0) return {};
  const FlatRange part{chunk.offset + first - record.at, into.size()};
  auto checked = check_part(*tree_, *source, record, part.first, into,
                            gaps_.beside(number, part, chunk.tag >> kRecordBits));
  if (!checked) return std::move(checked).error().about(label);
  return {};
}

Result<Flat> ZeroCheckpoint::add_flat(const TorchArchive& archive, std::uint32_t file,
                                      const TorchTensor& tensor) {
  EBB_TRY_ASSIGN(const std::optional<TorchArchive::Plain> plain, archive.plain(tensor));
  if (!plain)
    return Error{
        Code::unsupported,
        compose(
            "{}: storage '{}' is compressed, big-endian or strided: not a file DeepSpeed writes",
            archive.zip().source().name(), tensor.storage.key)};
  const ZipEntry& entry = *plain->record;
  const auto [known, added] = numbers_.emplace(std::pair(file, plain->record_at),
                                               static_cast<std::uint32_t>(records_.size()));
  if (added)
    records_.push_back({.name = entry.name,
                        .header_at = plain->record_at,
                        .at = plain->record_at,
                        .size = entry.has_crc() ? entry.size : 0,
                        .crc = entry.crc});
  return Flat{file,           known->second, plain->record_at + plain->first,
              tensor.elems(), tensor.dtype,  tensor.shape};
}

Flat ZeroCheckpoint::add_raw(std::uint32_t file, std::uint64_t elems) {
  records_.push_back({});
  return Flat{file, static_cast<std::uint32_t>(records_.size() - 1), 0, elems, DType::f32, {elems}};
}

void ZeroCheckpoint::finish() {
  std::vector<std::uint64_t> sizes;
  for (const CheckedRecord& record : records_) sizes.push_back(record.size);
  std::uint64_t holder = 0;
  for (TensorEntry& tensor : catalog_.tensors)
    for (Chunk& chunk : tensor.chunks) {
      const auto number = static_cast<std::uint32_t>(chunk.tag);
      const CheckedRecord& record = records_[number];
      if (record.size == 0) continue;
      chunk.tag |= ++holder << kRecordBits;
      gaps_.hold(number, {chunk.offset - record.at, chunk.length}, holder);
    }
  gaps_.close(sizes);
}

}  // namespace ebb::formats::deepspeed
