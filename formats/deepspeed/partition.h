// A described DeepSpeed checkpoint: the flat partitions of its ranks, slices of archive records, as
// chunks of parameters. Internal to formats/deepspeed.
// Arithmetic: DeepSpeed stage_1_and_2.py and stage3.py; docs/formats/deepspeed.md.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ebb/formats/core/name_table.h"
#include "ebb/formats/layout/layout.h"
#include "ebb/formats/pickle/known_globals.h"
#include "ebb/formats/torch/archive.h"
#include "ebb/formats/torch/archive_checkpoint.h"

namespace ebb::formats::deepspeed {

// Elements that lie dense in one file: a tensor of an archive or a swap file.
struct Flat {
  std::uint32_t file = 0;    // index into Catalog::files
  std::uint32_t record = 0;  // of the checkpoint
  std::uint64_t at = 0;      // absolute offset of the first element
  std::uint64_t elems = 0;
  DType dtype = DType::f32;
  Shape shape;
};

class ZeroCheckpoint : public ArchiveCheckpoint {
 public:
  explicit ZeroCheckpoint(std::shared_ptr<const SourceTree> tree)
      : ArchiveCheckpoint(std::move(tree)) {}

  Result<> read_chunk(const TensorEntry& tensor, const Chunk& chunk, std::uint64_t first,
                      std::span<std::byte> into) const override;

  // A tensor of an archive, which must be stored plainly.
  Result<Flat> add_flat(const TorchArchive& archive, std::uint32_t file, const TorchTensor& tensor);
  // A swap file: raw fp32 elements, padded at the end, no checksum.
  Flat add_raw(std::uint32_t file, std::uint64_t elems);
  // Call when all chunks are there.
  void finish();

  UnknownNames unknown;  // of all files that were opened
  // Tensors that other ranks have again, whole; nothing but a comparison reads them.
  std::vector<TensorEntry> copies;
  // The chunk of a tensor that is the mean of these, one of each rank, of one shape and floating.
  Chunk add_mean(std::vector<TensorEntry> parts);

 private:
  Result<> read_mean(const std::vector<TensorEntry>& parts, std::uint64_t first,
                     std::span<std::byte> into) const;

  std::vector<std::vector<TensorEntry>> means_;
  // Records, which the low half of Chunk::tag numbers, by file and place: tensors that are views of
  // one storage share a record, so that each reads its own bytes of it alone.
  std::map<std::pair<std::uint32_t, std::uint64_t>, std::uint32_t> numbers_;
};

struct Param {
  std::string name;  // "": alignment padding between parameters
  Shape shape;
};
// Parameters that share flat buffers, in flat order: a parameter group in stages 1 and 2, a
// sub-group in stage 3. Volumes, and their sum, fit 64 bits.
using Group = std::vector<Param>;

std::uint64_t elems_of(const Group& group);

// What of a group lies where in one rank's flat buffer.
struct Cut {
  struct Run {
    std::size_t param = 0;  // index into the group
    FlatRange range;        // of the parameter; not empty
    std::uint64_t at = 0;   // elements into the buffer
  };
  std::vector<Run> runs;      // ascending
  std::uint64_t lean = 0;     // elements before the padding at the buffer's end
  std::uint64_t full = 0;     // with it
  std::uint64_t padding = 0;  // elements that are no parameter's, wherever they lie
};
// Stages 1 and 2: the rank holds elements [first, first + count) of all parameters laid end to end,
// then `tail` elements of padding. REQUIRES: the range is inside the group.
Cut cut_flat(const Group& group, FlatRange held, std::uint64_t tail);
// Stage 3: of each parameter ceil(n / world) elements, padded inside the buffer.
Result<Cut> cut_each(const Group& group, Rank rank, std::uint32_t world);

class Partitions {
 public:
  explicit Partitions(ZeroCheckpoint& checkpoint) : checkpoint_(checkpoint) {}

  // The rank's buffer of one state, cut like `cut`; `where` names file and group.
  Result<> add(const Group& group, const Cut& cut, const std::string& state, Rank rank,
               const Flat& flat, const std::string& where);
  // DeepSpeed's Muon in stages 1 and 2 keeps the momentum of every parameter the rank touches,
  // whole. The lowest rank's copy is used.
  Result<> add_touched(const Group& group, const Cut& cut, const std::string& state, Rank rank,
                       const Flat& flat, const std::string& where);
  // A tensor that one file holds whole.
  Result<> add_whole(const std::string& name, const std::string& state, const Shape& shape,
                     const Flat& flat, const std::string& where);
  // The same for an entry of the dict `module`, which gives it a key.
  Result<> add_module(const std::string& name, const std::string& state, const Flat& flat,
                      const std::string& where);
  // What was added so far, out of the catalog; what is added next may have the same names.
  std::vector<TensorEntry> take();

 private:
  Result<TensorEntry*> entry(const std::string& name, const std::string& state, DType dtype,
                             const Shape& shape, const std::string& where);

  // Where in Catalog::tensors the parameters' tensors of one state are.
  struct OfState {
    NameTable names;
    std::vector<std::size_t> tensors;  // of each name
  };
  ZeroCheckpoint& checkpoint_;
  std::map<std::string, OfState> states_;
  std::deque<std::string> names_;  // that the tables look at
  std::size_t next_ = 0;           // in Catalog::tensors, behind the entry asked for last
};

// All elements of the parameters of which the cut has any part.
std::uint64_t touched_elems(const Group& group, const Cut& cut);

}  // namespace ebb::formats::deepspeed
