// What described checkpoints have in common whose elements lie in zip records.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/zip/record_check.h"

namespace ebb::formats {

// Tensors and pieces of them may share a record, and zip's CRC32 covers the whole record: it is
// checked when all of it was read, on the way where bytes are read as they lie, so that whoever
// reads everything has everything checked once.
class ArchiveCheckpoint : public Checkpoint {
 public:
  const Catalog& catalog() const override { return catalog_; }
  Catalog& building() { return catalog_; }

 protected:
  explicit ArchiveCheckpoint(std::shared_ptr<const SourceTree> tree) : tree_(std::move(tree)) {}

  const SourceTree& tree() const { return *tree_; }
  void expect_records(std::size_t count) { records_.reserve(records_.size() + count); }
  // Numbered in the order they are added. Of size 0: nothing to check.
  std::uint32_t add_record(CheckedRecord record) {
    records_.push_back(std::move(record));
    return static_cast<std::uint32_t>(records_.size() - 1);
  }
  const CheckedRecord& record(std::uint32_t number) const { return records_[number]; }
  // Who reads `holder`, a number of the caller's, will ask for these bytes of the record.
  void hold(std::uint32_t number, FlatRange bytes, std::uint64_t holder) {
    if (records_[number].size > 0) gaps_.hold(number, bytes, holder);
  }
  // Call when all was held.
  void close_records() {
    std::vector<std::uint64_t> sizes;
    for (const CheckedRecord& record : records_) sizes.push_back(record.size);
    gaps_.close(sizes);
  }
  // `bytes` were read for `holder`, from byte `first` of the record on. REQUIRES: closed.
  Result<> check(const ByteSource& source, std::uint32_t number, std::uint64_t first,
                 ByteView bytes, std::uint64_t holder) const {
    if (records_[number].size == 0) return {};
    return check_part(*tree_, source, records_[number], first, bytes,
                      gaps_.beside(number, {first, bytes.size()}, holder));
  }

 private:
  std::shared_ptr<const SourceTree> tree_;
  Catalog catalog_;
  std::vector<CheckedRecord> records_;
  RecordGaps gaps_;
};

}  // namespace ebb::formats
