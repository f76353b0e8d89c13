// Described torch.save files: a tensor is one chunk of one storage, or the boxes of it that ranks
// have in files of their own. For readers of such files.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "ebb/formats/torch/archive_checkpoint.h"
#include "ebb/formats/torch/torch_file.h"
#include "ebb/formats/torch_save/copies.h"
#include "ebb/formats/zip/inflate.h"

namespace ebb::formats::torch_save {

class FileCheckpoint : public ArchiveCheckpoint {
 public:
  explicit FileCheckpoint(std::shared_ptr<const SourceTree> tree)
      : ArchiveCheckpoint(std::move(tree)) {}

  Result<> read_chunk(const TensorEntry& tensor, const Chunk& chunk, std::uint64_t first,
                      std::span<std::byte> into) const override;

  // About how many more records and tensors will come: their lists do not move while they grow.
  void expect(std::size_t records);
  // A file of the tree, and the order of bytes in it. Files and records are numbered in the order
  // they are added.
  std::uint32_t add_file(std::string name, std::shared_ptr<const ByteSource> source,
                         ByteOrder order);
  std::uint32_t add(StoredRecord record, std::uint32_t file);
  // `entry` gets its chunk. REQUIRES: the tensor lies inside the record.
  void add_tensor(TensorEntry entry, TorchTensor tensor, std::uint32_t record);
  // The tensor at this place of the catalog's list gets a chunk: what lies in `box` of it. Gives
  // the chunk's tag. REQUIRES: as above, and the tensor has the box's extent.
  std::uint64_t add_chunk(std::size_t number, Box box, TorchTensor tensor, std::uint32_t record,
                          Rank holder);
  // A chunk for an entry that is not in the list yet. REQUIRES: as above.
  Chunk chunk_of(Box box, TorchTensor tensor, std::uint32_t record, Rank holder);
  std::uint32_t crc_of(std::uint32_t record) const { return records_[record].entry.crc; }
  // What add_chunk gave a tag.
  StoredCopy copy_of(std::uint64_t tag) const;
  // Call when all tensors are there.
  void finish();

 private:
  struct File {
    std::shared_ptr<const ByteSource> source;
    ByteOrder order;
  };
  struct Record {
    ZipEntry entry;          // without its name
    std::uint32_t file = 0;  // in files_ and in the catalog
    std::size_t last = 0;    // the tensor that was added last
  };
  struct Stored {
    TorchTensor tensor;
    std::uint32_t record = 0;
  };
  struct Inflating {
    std::uint32_t record = 0;
    InflateSource source;
  };

  Result<> read_inflated(const Stored& stored, std::uint64_t number, std::uint64_t first,
                         std::span<std::byte> into) const;
  Result<> check_read(const Stored& stored, std::uint64_t number, std::uint64_t first,
                      ByteView bytes) const;
  // The last bytes of the last tensor in the record.
  bool is_last(const Stored& stored, std::uint64_t number, std::uint64_t first,
               ByteView bytes) const;
  bool lies_as_wanted(const Stored& stored) const;
  const File& file_of(const Stored& stored) const { return files_[records_[stored.record].file]; }

  std::vector<File> files_;
  std::vector<Record> records_;
  std::map<std::uint32_t, ZipEntry> deflated_;  // records, by number
  std::vector<Stored> stored_;                  // Chunk::tag is an index into it
  mutable std::atomic<std::shared_ptr<const Inflating>> inflating_;  // the one used last
};

}  // namespace ebb::formats::torch_save
