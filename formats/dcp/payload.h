// The payload items of a DCP checkpoint: each is a torch.save archive, perhaps compressed by the
// zstd extension. Internal to formats/dcp.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/dcp/index.h"
#include "ebb/formats/safetensors/header.h"
#include "ebb/formats/torch/archive.h"
#include "ebb/formats/torch/composite_join.h"
#include "ebb/formats/torch/unread.h"

namespace ebb::formats::dcp {

// How the bytes of an item are to be understood: what a chunk's tag says.
constexpr std::uint64_t kRawItem = ~std::uint64_t{0};  // the elements themselves

// Where an item lies and what it must be.
struct PayloadPlace {
  std::string file;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  std::uint64_t coding = 0;  // an archive, compressed so many times; or kRawItem
  std::string part = {};     // of a tensor that is made of parts; "": the item is the tensor
};

// Safe from any thread. Files are opened for each read and not kept: a checkpoint may have a file
// per item. Items that cannot be read in parts as they lie (compressed ones) are decoded whole and
// left to the tree to keep (SourceTree::decoded).
class Payloads {
 public:
  explicit Payloads(std::shared_ptr<const SourceTree> tree) : tree_(std::move(tree)) {}

  // The item must hold one tensor (or the part of one) of `shape` and `dtype`; fills `into` with
  // its row-major bytes from byte `first` on. `label` names the tensor and its rows. The archive's
  // CRC32 covers the whole item: whoever reads all of it, in any parts, has it checked
  // (record_check.h).
  Result<> read(const PayloadPlace& place, const Shape& shape, DType dtype, std::string_view label,
                std::uint64_t first, std::span<std::byte> into) const;

  // What the item holds, where that is a tensor made of parts, or in a form that is not read.
  // monostate: it is a plain one, or is compressed; reading it says which. Chunks of parts have the
  // place of the elements, and no file.
  using Form = std::variant<std::monostate, CompositePiece, UnreadForm>;
  Result<Form> form_of(const PayloadPlace& place) const;

  // Pays for what it unfolds to beyond its length out of `budget`, which all values share.
  Result<ReadablePart> value(const PayloadPlace& place, std::uint64_t& budget) const;

 private:
  struct Opened {  // an item that is one tensor
    TorchArchive archive;
    TorchTensor tensor;
    const ZipEntry* record = nullptr;    // of the archive
    std::optional<ByteVector> elements;  // all of them, decoded, where the record is deflated
  };

  std::string path_of(const PayloadPlace& place) const;
  Result<TorchArchive> open(const PayloadPlace& place, std::uint64_t plain_bytes,
                            std::uint64_t plain_limit, PickleLimits limits = {}) const;
  static Result<CompositePiece> piece_in(const TorchArchive& archive, TorchComposite made);
  Result<Opened> open_tensor(const PayloadPlace& place, const Shape& shape, DType dtype) const;
  Result<> read_tensor(const PayloadPlace& place, const Shape& shape, DType dtype,
                       std::uint64_t first, std::span<std::byte> into) const;
  Result<std::shared_ptr<const Opened>> decoded(const PayloadPlace& place, const Shape& shape,
                                                DType dtype) const;
  Result<> read_raw(const PayloadPlace& place, std::uint64_t first,
                    std::span<std::byte> into) const;

  std::shared_ptr<const SourceTree> tree_;
};

// Payload files in the safetensors serialization (torch 2.8 and newer, FileSystemWriter's
// serialization_format): archives of values, then one whole safetensors file with the rank's
// tensors. The index knows only where that file begins.
class RawItems {
 public:
  explicit RawItems(std::shared_ptr<const SourceTree> tree) : tree_(std::move(tree)) {}

  // Whether the index gives an item the length of its elements: an archive is always longer.
  static bool is_raw(const StoredItem& item, DType dtype, const Box& box);

  // Where the elements of one chunk lie in `file`. Code::incomplete when torch lost it: a file
  // holds one chunk of a tensor, the last one that the rank wrote.
  Result<std::uint64_t> offset_of(const std::string& file, const StoredItem& item,
                                  const std::string& key, DType dtype, const Box& box);

 private:
  struct Tensors {
    safetensors::Header header;
    Value places;  // {key: {"saved_offsets": [...]}}
    std::map<std::string_view, const safetensors::HeaderTensor*> by_key;
  };
  Result<const Tensors*> tensors_at(const std::string& file, std::uint64_t offset);

  std::shared_ptr<const SourceTree> tree_;
  std::map<std::pair<std::string, std::uint64_t>, std::unique_ptr<Tensors>> read_;
};

}  // namespace ebb::formats::dcp
