// Turns the flat partitions of one rank into chunks of parameters. Internal to formats/deepspeed.
// Arithmetic: DeepSpeed stage_1_and_2.py and stage3.py; docs/formats/deepspeed.md.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "ebb/formats/core/name_table.h"
#include "ebb/formats/deepspeed/checkpoint.h"
#include "ebb/formats/layout/layout.h"

namespace ebb::formats::deepspeed {

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
