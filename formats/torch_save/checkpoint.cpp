#include "ebb/formats/torch_save/checkpoint.h"

#include "ebb/formats/core/check.h"

namespace ebb::formats::torch_save {

void FileCheckpoint::expect(std::size_t records) {
  records_.reserve(records_.size() + records);
  expect_records(records);
  stored_.reserve(stored_.size() + records);
  building().tensors.reserve(catalog().tensors.size() + records);
}

std::uint32_t FileCheckpoint::add_file(std::string name, std::shared_ptr<const ByteSource> source,
                                       ByteOrder order) {
  building().files.push_back({std::move(name), source->size(), std::nullopt});
  files_.push_back({std::move(source), order});
  return static_cast<std::uint32_t>(files_.size() - 1);
}

std::uint32_t FileCheckpoint::add(StoredRecord stored, std::uint32_t file) {
  const ZipEntry& entry = stored.entry;
  const bool checked = entry.has_crc() && !entry.deflated;  // inflating checks by itself
  const std::uint32_t number = add_record({.name = entry.name,
                                           .header_at = entry.header_at,
                                           .at = stored.at,
                                           .size = checked ? entry.size : 0,
                                           .crc = entry.crc});
  Record& of = records_.emplace_back();
  of.entry = {.name = {}, .crc = entry.crc, .stored_size = entry.stored_size, .size = entry.size};
  of.file = file;
  if (entry.deflated) deflated_.emplace(number, std::move(stored.entry));
  return number;
}

void FileCheckpoint::add_tensor(TensorEntry entry, TorchTensor tensor, std::uint32_t number) {
  const std::size_t place = catalog().tensors.size();
  building().tensors.push_back(std::move(entry));
  Box box = whole(tensor.shape);
  add_chunk(place, std::move(box), std::move(tensor), number, Rank{});
}

std::uint64_t FileCheckpoint::add_chunk(std::size_t place, Box box, TorchTensor tensor,
                                        std::uint32_t number, Rank holder) {
  const bool empty = tensor.elems() == 0;
  Chunk chunk = chunk_of(std::move(box), std::move(tensor), number, holder);
  const std::uint64_t tag = chunk.tag;
  if (!empty) building().tensors[place].chunks.push_back(std::move(chunk));
  return tag;
}

Chunk FileCheckpoint::chunk_of(Box box, TorchTensor tensor, std::uint32_t number, Rank holder) {
  Record& of = records_[number];
  const std::uint64_t tag = stored_.size();
  const bool plain = !deflated_.contains(number) && tensor.row_major();
  Chunk chunk{.box = std::move(box), .file = of.file, .holder = holder, .tag = tag};
  chunk.offset = record(number).at + (plain ? tensor.first * bytes_of(tensor.dtype) : 0);
  chunk.length = plain ? tensor.bytes() : of.entry.stored_size;
  of.last = tag;
  stored_.push_back({std::move(tensor), number});
  return chunk;
}

StoredCopy FileCheckpoint::copy_of(std::uint64_t tag) const {
  const Stored& stored = stored_[tag];
  StoredRecord its{record(stored.record).at, records_[stored.record].entry};
  if (const auto deflated = deflated_.find(stored.record); deflated != deflated_.end())
    its.entry = deflated->second;
  return {stored.tensor, std::move(its), file_of(stored).source, file_of(stored).order};
}

void FileCheckpoint::finish() {
  for (std::uint64_t number = 0; number < stored_.size(); ++number)
    if (const Stored& stored = stored_[number]; lies_as_wanted(stored))
      hold(stored.record,
           {stored.tensor.first * bytes_of(stored.tensor.dtype), stored.tensor.bytes()}, number);
  close_records();
}

Result<> FileCheckpoint::read_chunk(const TensorEntry& tensor, const Chunk& chunk,
                                    std::uint64_t first, std::span<std::byte> into) const {
  EBB_CHECK(chunk.tag < stored_.size());
  const Stored& stored = stored_[chunk.tag];
  Result<> done;
  if (deflated_.contains(stored.record)) {
    done = read_inflated(stored, chunk.tag, first, into);
  } else {
    done = read_elements(*file_of(stored).source, record(stored.record).at, stored.tensor,
                         file_of(stored).order, first, into);
    if (done) done = check_read(stored, chunk.tag, first, into);
  }
  if (!done) return std::move(done).error().about(label_of(tensor));
  return {};
}

Result<> FileCheckpoint::read_inflated(const Stored& stored, std::uint64_t number,
                                       std::uint64_t first, std::span<std::byte> into) const {
  std::shared_ptr<const Inflating> open = inflating_.load();
  if (open == nullptr || open->record != stored.record) {
    open = std::shared_ptr<const Inflating>(
        new Inflating{stored.record, InflateSource(file_of(stored).source, record(stored.record).at,
                                                   deflated_.at(stored.record))});
    inflating_.store(open);
  }
  EBB_TRY(read_elements(open->source, 0, stored.tensor, file_of(stored).order, first, into));
  return is_last(stored, number, first, into) ? open->source.finish() : Result<>();
}

Result<> FileCheckpoint::check_read(const Stored& stored, std::uint64_t number, std::uint64_t first,
                                    ByteView bytes) const {
  const TorchTensor& tensor = stored.tensor;
  const ByteSource& source = *file_of(stored).source;
  if (lies_as_wanted(stored))
    return check(source, stored.record, tensor.first * bytes_of(tensor.dtype) + first, bytes,
                 number);
  const CheckedRecord& whole = record(stored.record);
  const bool now = whole.size > 0 && is_last(stored, number, first, bytes);
  return now ? check_record(source, whole) : Result<>();
}

bool FileCheckpoint::is_last(const Stored& stored, std::uint64_t number, std::uint64_t first,
                             ByteView bytes) const {
  return records_[stored.record].last == number && first + bytes.size() == stored.tensor.bytes();
}

bool FileCheckpoint::lies_as_wanted(const Stored& stored) const {
  return stored.tensor.row_major() &&
         (file_of(stored).order == ByteOrder::little || swap_unit(stored.tensor.dtype) == 1);
}

}  // namespace ebb::formats::torch_save
