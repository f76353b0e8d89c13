#include "ebb/formats/torch_save/checkpoint.h"

#include "ebb/formats/core/check.h"

namespace ebb::formats::torch_save {

void FileCheckpoint::expect(std::size_t records) {
  records_.reserve(records_.size() + records);
  stored_.reserve(stored_.size() + records);
  catalog_.tensors.reserve(catalog_.tensors.size() + records);
}

void FileCheckpoint::add_file(std::string name, std::shared_ptr<const ByteSource> source,
                              ByteOrder order) {
  catalog_.files.push_back({std::move(name), source->size(), std::nullopt});
  files_.push_back({std::move(source), order});
}

std::uint32_t FileCheckpoint::add_record(StoredRecord record) {
  records_.push_back({std::move(record), static_cast<std::uint32_t>(files_.size() - 1), 0});
  return static_cast<std::uint32_t>(records_.size() - 1);
}

void FileCheckpoint::add_tensor(TensorEntry entry, TorchTensor tensor, std::uint32_t record) {
  const StoredRecord& place = records_[record].place;
  const bool plain = !place.entry.deflated && tensor.row_major();
  Chunk chunk{.box = whole(tensor.shape), .file = records_[record].file, .tag = stored_.size()};
  chunk.offset = place.at + (plain ? tensor.first * bytes_of(tensor.dtype) : 0);
  chunk.length = plain ? tensor.bytes() : place.entry.stored_size;
  if (tensor.elems() != 0) entry.chunks.push_back(std::move(chunk));
  records_[record].last = stored_.size();
  stored_.push_back({std::move(tensor), record});
  catalog_.tensors.push_back(std::move(entry));
}

void FileCheckpoint::finish() {
  std::vector<std::uint64_t> sizes;
  for (const Record& record : records_) sizes.push_back(record.place.entry.size);
  for (std::uint64_t number = 0; number < stored_.size(); ++number)
    if (const Stored& stored = stored_[number]; lies_as_wanted(stored))
      gaps_.hold(stored.record,
                 {stored.tensor.first * bytes_of(stored.tensor.dtype), stored.tensor.bytes()},
                 number);
  gaps_.close(sizes);
}

Result<> FileCheckpoint::read_chunk(const TensorEntry& tensor, const Chunk& chunk,
                                    std::uint64_t first, std::span<std::byte> into) const {
  EBB_CHECK(chunk.tag < stored_.size());
  const Stored& stored = stored_[chunk.tag];
  const StoredRecord& place = records_[stored.record].place;
  Result<> done = place.entry.deflated
                      ? read_inflated(stored, chunk.tag, first, into)
                      : read_elements(*file_of(stored).source, place.at, stored.tensor,
                                      file_of(stored).order, first, into);
  if (done && !place.entry.deflated) done = check(stored, chunk.tag, first, into);
  if (!done) return std::move(done).error().about(label_of(tensor));
  return {};
}

Result<> FileCheckpoint::read_inflated(const Stored& stored, std::uint64_t number,
                                       std::uint64_t first, std::span<std::byte> into) const {
  std::shared_ptr<const Inflating> open = inflating_.load();
  if (open == nullptr || open->record != stored.record) {
    const StoredRecord& place = records_[stored.record].place;
    open = std::shared_ptr<const Inflating>(
        new Inflating{stored.record, InflateSource(file_of(stored).source, place.at, place.entry)});
    inflating_.store(open);
  }
  EBB_TRY(read_elements(open->source, 0, stored.tensor, file_of(stored).order, first, into));
  const bool last_of_all =
      records_[stored.record].last == number && first + into.size() == stored.tensor.bytes();
  return last_of_all ? open->source.finish() : Result<>();
}

Result<> FileCheckpoint::check(const Stored& stored, std::uint64_t number, std::uint64_t first,
                               ByteView bytes) const {
  const Record& record = records_[stored.record];
  const ZipEntry& entry = record.place.entry;
  if (!entry.has_crc()) return {};
  const TorchTensor& tensor = stored.tensor;
  const CheckedRecord checked{entry.name, entry.header_at, record.place.at, entry.size, entry.crc};
  if (lies_as_wanted(stored)) {
    const FlatRange part{tensor.first * bytes_of(tensor.dtype) + first, bytes.size()};
    return check_part(*tree_, *file_of(stored).source, checked, part.first, bytes,
                      gaps_.beside(stored.record, part, number));
  }
  const bool last_of_all = record.last == number && first + bytes.size() == tensor.bytes();
  return last_of_all ? check_record(*file_of(stored).source, checked) : Result<>();
}

bool FileCheckpoint::lies_as_wanted(const Stored& stored) const {
  return stored.tensor.row_major() &&
         (file_of(stored).order == ByteOrder::little || swap_unit(stored.tensor.dtype) == 1);
}

}  // namespace ebb::formats::torch_save
