// Lays items out in the payload files of a DCP checkpoint to be written: what every format that is
// DCP underneath emits through. Internal to formats.
#pragma once

#include <cstdint>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "ebb/formats/catalog/emit.h"
#include "ebb/formats/core/result.h"
#include "ebb/formats/dcp/emit_index.h"

namespace ebb::formats::dcp {

// One payload file a rank, `folder` + "__<rank>_0.distcp"; values in rank 0's. Keys are claimed as
// they are added: the second entry under one key is Code::layout. What torch cannot hold is listed
// in the plan's `dropped`.
class ItemWriter {
 public:
  // `folder` is "" or ends in '/'.
  static Result<ItemWriter> make(const EmitRequest& request, std::string folder);

  Result<> add_value(std::string key, std::vector<PathItem> path, const Value& value);
  // Content tensor `number`, rounded to `as` when that is given: one item per piece of the layout,
  // several for a large one that is compressed; a piece that several ranks hold is written once, by
  // the least loaded of them.
  Result<> add_tensor(std::string key, std::vector<PathItem> path, std::uint32_t number,
                      std::optional<DType> as = std::nullopt);

  // One that is made of these content tensors, whole in one item. Code::unsupported where items are
  // compressed. REQUIRES: as for TorchFileWriter::composite.
  Result<> add_composite(std::string key, std::vector<PathItem> path,
                         const std::vector<std::uint32_t>& parts);

  bool has(const std::string& key) const { return keys_.contains(key); }
  std::vector<std::string>& dropped() { return plan_.dropped; }
  // Content tensor `number` is not stored under `key`; "tensor KEY: <why>" goes into `dropped`.
  void omit(std::uint32_t number, std::string_view key, std::string_view why);

  // The payload files, to be compressed where the request says so, and `folder` + ".metadata" as
  // the commit file. Call once, last.
  EmitPlan finish();

 private:
  struct Assigned {  // a piece and the one rank that writes it
    Box box;
    Rank writer{};
  };

  ItemWriter(const EmitRequest& request, std::string folder);
  Result<> claim(const std::string& key);
  bool packs() const { return compression_.has_value(); }
  WrittenItem end_item(OutputFile& file, std::uint64_t start);
  WrittenItem add_archive(ByteVector bytes);
  WrittenItem add_piece(std::uint32_t number, DType dtype, const Assigned& piece);
  std::vector<Assigned> assign(std::uint32_t number);

  const Catalog& content_;
  const Layout& layout_;
  std::optional<Compression> compression_;
  std::string folder_;
  EmitPlan plan_;
  ItemPlaces places_;
  std::vector<std::uint64_t> load_;  // bytes of tensors each rank writes
  std::set<std::string> keys_;
  std::vector<WrittenTensor> tensors_;
  std::vector<WrittenValue> values_;
};

}  // namespace ebb::formats::dcp
