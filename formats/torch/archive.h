// A torch.save archive: its object graph and the elements behind its tensors.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "ebb/formats/catalog/value.h"
#include "ebb/formats/pickle/pickle.h"
#include "ebb/formats/torch/tensor.h"
#include "ebb/formats/zip/zip.h"

namespace ebb::formats {

class TorchArchive {
 public:
  // Reads the zip directory and data.pkl of bytes [offset, offset + length) of `source`.
  static Result<TorchArchive> open(std::shared_ptr<const ByteSource> source, std::uint64_t offset,
                                   std::uint64_t length, PickleLimits limits = {});

  const PickleGraph& graph() const { return graph_; }
  const ZipReader& zip() const { return zip_; }
  bool big_endian() const { return big_endian_; }
  std::uint64_t length() const { return length_; }

  // The record behind a tensor; refused when missing or shorter than the pickle declares.
  Result<const ZipEntry*> record_of(const TorchTensor& tensor) const;

  // Where a tensor's elements lie as they are wanted: stored, row-major, little-endian.
  struct Plain {
    std::uint64_t record_at = 0;  // absolute in the source
    std::uint64_t first = 0;      // bytes from record_at to the first element
    const ZipEntry* record = nullptr;
  };
  Result<std::optional<Plain>> plain(const TorchTensor& tensor) const;

  // All elements, row-major, little-endian, the record's CRC32 verified. At most `limit` bytes of
  // record and of tensor.
  Result<ByteVector> elements(const TorchTensor& tensor, std::uint64_t limit) const;

  // elements() for values, at most 256 MiB. Together they may read and make twice the archive's
  // length; beyond that the graph is charged: tensors may share a record, or repeat one element
  // without end. Not for two threads at once.
  Result<ByteVector> value_elements(const TorchTensor& tensor) const;

 private:
  TorchArchive(ZipReader zip, PickleGraph graph) : zip_(std::move(zip)), graph_(std::move(graph)) {}
  ZipReader zip_;
  PickleGraph graph_;
  bool big_endian_ = false;
  std::uint64_t length_ = 0;
  mutable std::uint64_t made_ = 0;
};

// A node as an inert Value. Tensors inside become Kind::tensor with their elements in `raw` and
// their sha256 in `text` when an archive is given, Kind::object otherwise. Objects of classes we do
// not interpret keep their name only. Cycles and more than 256 levels or 2^20 parts are refused.
Result<Value> value_of(const PickleGraph& graph, PickleId id, const TorchArchive* archive);

}  // namespace ebb::formats
