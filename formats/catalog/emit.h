// What a checkpoint to be written will consist of, before a byte moves: every format's emit() turns
// content + layout into files made of literal bytes and references to tensor boxes.
#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <variant>
#include <vector>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/layout/layout.h"

namespace ebb::formats {

// The decoded row-major elements of one box of one tensor of the content.
struct TensorData {
  std::uint32_t tensor = 0;  // index into EmitRequest::content.tensors
  Box box;
  // Rounded to this dtype on the way (core/float_cast.h); both are floating then. Unset: as it is.
  std::optional<DType> as = std::nullopt;
};
DType written_dtype(const TensorData& data, const Catalog& content);

struct FileRange {
  std::uint64_t offset = 0;
  std::uint64_t size = 0;
  friend auto operator<=>(const FileRange&, const FileRange&) = default;
};
// Bytes of known size that need checksums of what was written before them: CRC32s (zip's) of ranges
// of the same file, or, in a commit file, the CRC32Cs of a shard file's blocks.
struct Sealed {
  std::uint64_t size = 0;
  std::vector<FileRange>
      over;  // end before this fragment; ranges of one file are equal or disjoint
  std::function<ByteVector(std::span<const std::uint32_t> crcs)> bytes;  // one CRC a range or block
  std::optional<std::uint32_t> blocks_of = std::nullopt;  // EmitPlan::files; `over` is empty then
};
// Parts of a file whose CRC32Cs are taken while it is written: `count` of `bytes` each from
// `first`.
struct CheckedBlocks {
  std::uint64_t first = 0;
  std::uint64_t bytes = 1;
  std::uint64_t count = 0;
};
struct Fragment {
  std::uint64_t offset = 0;  // in the file; fragments ascend; gaps are zeros
  std::variant<ByteVector, TensorData, Sealed> data;
};
std::uint64_t size_of(const Fragment& fragment, const Catalog& content);  // bytes
// A part of a file that is packed, and how.
enum class Pack : std::uint8_t { compressed, as_it_is };
struct PackedItem {
  FileRange place;  // before that
  Pack pack = Pack::compressed;
};
// The first bytes of a packed file, made when it is known where its items came to lie.
struct PackedHead {
  std::uint64_t size = 0;
  std::function<ByteVector(std::span<const FileRange> places)> bytes;  // in the items' order
};
struct OutputFile {
  std::string name;  // relative to the checkpoint directory
  std::uint64_t size = 0;
  Rank writer{};  // the rank that would write it in a distributed save
  std::vector<Fragment> fragments;
  std::optional<CheckedBlocks> blocks = std::nullopt;
  // Of a plan with `packing`: the parts of the file that become one frame each, or go as they are,
  // ascending, behind the head. No fragment lies across their borders or outside them, and seals
  // are over their own item.
  std::vector<PackedItem> items = {};
  std::optional<PackedHead> head = std::nullopt;
};
// A file of these bytes.
OutputFile literal_file(std::string name, ByteVector bytes);
// A content tensor that is not stored because readers of the format round another one to its dtype.
struct Derived {
  std::uint32_t tensor = 0;
  std::uint32_t from = 0;
};
enum class Codec : std::uint8_t { zstd };
struct Compression {
  Codec codec = Codec::zstd;
  int level = 3;  // core/compress.h says which there are
};
// Where each item of each shard file came to lie in it: in any order, never on each other.
using ItemPlaces = std::vector<std::vector<FileRange>>;
// The shard files are compressed item by item. What the plan says of them - sizes, offsets - is of
// the files before that: nobody knows more before the elements were read.
struct Packing {
  Compression compression;
  // The commit files, of literal bytes; those of the plan are for the files before compression.
  // nullptr: they do not say where anything lies, and those of the plan stand.
  std::function<std::vector<OutputFile>(const ItemPlaces& places)> commit_files;
};
struct EmitPlan {
  std::vector<OutputFile> files;         // shards, any order
  std::vector<OutputFile> commit_files;  // written after all shards are durable, in this order
  std::optional<Packing> packing = std::nullopt;
  // What the format cannot hold, one line each; never silent. "parameter group N ..." and "the
  // steps of ..." speak of all of it, other lines have the key or name in quotes.
  std::vector<std::string> dropped;
  std::vector<std::uint32_t> omitted;  // the tensors among them, by number
  // Keys of values that are stored changed, because they say how or where the content is stored.
  std::vector<std::string> rewritten;
  // The content's groups, by number, where they are written in another order than theirs.
  std::vector<std::uint32_t> group_order;
  bool groups_have_order = true;   // false: a job finds its own by their settings
  std::vector<Derived> derived;    // proven bit for bit while writing
  std::vector<std::string> notes;  // what is stored that the content does not have
};

struct EmitRequest {
  const Catalog& content;  // tensors (chunks are ignored), values, groups, step
  // How tensors are cut: one Layout over content.tensors in order, on a mesh that is its world.
  const Layout& layout;
  // Of the tensors in one file, except where one alone is larger. For formats that cut files
  // (Format::file_size); others ignore it.
  static constexpr std::uint64_t kOneFile = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t file_bytes = kOneFile;
  // For formats that hold compressed data (Format::packs); others ignore it.
  std::optional<Compression> compression = std::nullopt;
};

}  // namespace ebb::formats

namespace ebb {
using formats::EmitPlan;
using formats::FileRange;
using formats::Fragment;
using formats::OutputFile;
using formats::TensorData;
}  // namespace ebb
