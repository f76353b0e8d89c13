// Described torch.save files: every tensor is one chunk of one storage. Internal to
// formats/torch_save.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/torch/torch_file.h"
#include "ebb/formats/zip/inflate.h"
#include "ebb/formats/zip/record_check.h"

namespace ebb::formats::torch_save {

// Storages may be shared, and zip's CRC32 covers the whole storage: it is checked when all tensors
// in it were read, on the way where elements lie as they are wanted, so that whoever reads
// everything has everything checked once.
class FileCheckpoint : public Checkpoint {
 public:
  explicit FileCheckpoint(std::shared_ptr<const SourceTree> tree) : tree_(std::move(tree)) {}

  const Catalog& catalog() const override { return catalog_; }
  Result<> read_chunk(const TensorEntry& tensor, const Chunk& chunk, std::uint64_t first,
                      std::span<std::byte> into) const override;

  Catalog& building() { return catalog_; }
  // About how many more records and tensors will come: their lists do not move while they grow.
  void expect(std::size_t records);
  // A file of the tree, and the order of bytes in it; what is added next lies there.
  void add_file(std::string name, std::shared_ptr<const ByteSource> source, ByteOrder order);
  // Records are numbered in the order they are added.
  std::uint32_t add_record(StoredRecord record);
  // `entry` gets its chunk. REQUIRES: the tensor lies inside the record.
  void add_tensor(TensorEntry entry, TorchTensor tensor, std::uint32_t record);
  // Call when all tensors are there.
  void finish();

 private:
  struct File {
    std::shared_ptr<const ByteSource> source;
    ByteOrder order;
  };
  struct Record {
    StoredRecord place;
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
  Result<> check(const Stored& stored, std::uint64_t number, std::uint64_t first,
                 ByteView bytes) const;
  bool lies_as_wanted(const Stored& stored) const;
  const File& file_of(const Stored& stored) const { return files_[records_[stored.record].file]; }

  std::shared_ptr<const SourceTree> tree_;
  Catalog catalog_;
  std::vector<File> files_;
  std::vector<Record> records_;
  std::vector<Stored> stored_;  // Chunk::tag is an index into it
  RecordGaps gaps_;             // between tensors that lie as they are wanted
  mutable std::atomic<std::shared_ptr<const Inflating>> inflating_;  // the one used last
};

}  // namespace ebb::formats::torch_save
