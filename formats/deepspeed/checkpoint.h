// A described DeepSpeed checkpoint: chunks are slices of archive records. Internal to
// formats/deepspeed.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/torch/archive.h"
#include "ebb/formats/zip/record_check.h"

namespace ebb::formats::deepspeed {

// Elements that lie dense in one file: a tensor of an archive or a swap file.
struct Flat {
  std::uint32_t file = 0;    // index into Catalog::files
  std::uint32_t record = 0;  // index into ZeroCheckpoint's records
  std::uint64_t at = 0;      // absolute offset of the first element
  std::uint64_t elems = 0;
  DType dtype = DType::f32;
  Shape shape;
};

// One record holds many parameters' pieces, and zip's CRC32 covers the whole record: it is checked
// when all pieces were read, so that whoever reads everything has everything checked once.
class ZeroCheckpoint : public Checkpoint {
 public:
  explicit ZeroCheckpoint(std::shared_ptr<const SourceTree> tree) : tree_(std::move(tree)) {}

  const Catalog& catalog() const override { return catalog_; }
  Result<> read_chunk(const TensorEntry& tensor, const Chunk& chunk, std::uint64_t first,
                      std::span<std::byte> into) const override;

  Catalog& building() { return catalog_; }
  // A tensor of an archive, which must be stored plainly.
  Result<Flat> add_flat(const TorchArchive& archive, std::uint32_t file, const TorchTensor& tensor);
  // A swap file: raw fp32 elements, padded at the end, no checksum.
  Flat add_raw(std::uint32_t file, std::uint64_t elems);
  // Call when all chunks are there.
  void finish();

 private:
  std::shared_ptr<const SourceTree> tree_;
  Catalog catalog_;
  // By the low half of Chunk::tag; size 0: nothing to check. Tensors that are views of one storage
  // share a record, so that each reads its own bytes of it alone.
  std::vector<CheckedRecord> records_;
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::uint32_t> numbers_;  // by file and place
  RecordGaps gaps_;
};

}  // namespace ebb::formats::deepspeed
