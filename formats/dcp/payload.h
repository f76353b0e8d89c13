// The payload items of a DCP checkpoint: each is a torch.save archive, perhaps compressed by the
// zstd extension. Internal to formats/dcp.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "formats/catalog/catalog.h"
#include "formats/torch/archive.h"

namespace formats {

// Where an item lies and what it must be.
struct DcpPlace {
  std::string file;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  std::uint64_t zstd = 0;
};

// Stateless, so safe from any thread. Files are opened for each read and not kept: a checkpoint may
// have a file per item.
class DcpPayloads {
 public:
  explicit DcpPayloads(std::shared_ptr<const SourceTree> tree) : tree_(std::move(tree)) {}

  // The item must hold one tensor of `shape` and `dtype`; fills `into` with its row-major bytes
  // from byte `first` on. `label` names the tensor and its rows. The archive's CRC32 covers the
  // whole item. Reading all of it checks it on the way; a read of a part checks it, in a second
  // pass, when the part holds the item's last byte: whoever reads an item in parts, in any order,
  // has it checked once. Compressed items, and those not stored row-major, are decoded whole at
  // each read: read them whole.
  Result<> read(const DcpPlace& place, const Shape& shape, DType dtype, std::string_view label,
                std::uint64_t first, std::span<std::byte> into) const;

  // Pays for what it unfolds to beyond its length out of `purse`, which all values share.
  Result<Value> value(const DcpPlace& place, std::uint64_t& purse) const;

 private:
  std::string path_of(const DcpPlace& place) const;
  Result<TorchArchive> open(const DcpPlace& place, std::uint64_t plain_limit,
                            PickleLimits limits = {}) const;
  Result<> read_tensor(const DcpPlace& place, const Shape& shape, DType dtype, std::uint64_t first,
                       std::span<std::byte> into) const;

  std::shared_ptr<const SourceTree> tree_;
};

}  // namespace formats
