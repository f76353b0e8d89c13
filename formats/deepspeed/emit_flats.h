// The flat buffers of a DeepSpeed checkpoint to be written: which parameters share one, how it is
// cut over the ranks, and which bytes of the content a rank's partition consists of. Internal to
// formats/deepspeed. Arithmetic: DeepSpeed 0.19.8 stage_1_and_2.py and stage3.py.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ebb/formats/deepspeed/emit_content.h"
#include "ebb/formats/layout/layout.h"
#include "ebb/formats/torch/file_writer.h"

namespace ebb::formats::deepspeed {

// What of each parameter a buffer holds.
struct Field {
  std::string state;  // "" for the master weights
  DType dtype = DType::f32;
  bool touched = false;  // whole parameters, all that the rank's partition touches
};

struct OutFlat {
  // `params` stay where they are while this lives. What the buffer cannot hold goes to `plan`.
  static Result<OutFlat> make(std::size_t group, std::vector<const Trained*> params,
                              const Content& what, const Catalog& content, EmitPlan& plan);

  // All of parameter `p` for a file of its own: masters at least F32, states as they are.
  TensorData whole_of(std::size_t p, const Field& field, const Catalog& content) const;

  // The part of parameter `p` that lies in the rank's partition: elements, and where they begin.
  struct Slice {
    std::uint64_t count = 0;
    std::uint64_t first = 0;
  };
  Slice slice(std::size_t p, Rank rank) const;
  // The rank's partition; with zeros wherever no parameter lies, up to `elems`.
  std::vector<StoragePart> partition(const Field& field, Rank rank, std::uint64_t elems,
                                     const Catalog& content) const;
  std::vector<StoragePart> touched(const Field& field, Rank rank, const Catalog& content) const;
  std::uint64_t full_elems(Rank rank) const { return layout.buffer_elems(rank); }
  std::uint64_t padding_elems(Rank rank) const { return layout.padding_elems(rank); }

  std::size_t group = 0;
  std::vector<const Trained*> params;
  Layout layout;                    // gaps are tensors of it as well
  std::vector<std::size_t> places;  // parameter -> its number in the layout
  std::vector<std::uint64_t> gaps;  // elements of padding after each parameter, for alignment
  std::optional<std::int64_t> steps;
  Field master;
  std::vector<Field> states;
};

// All buffers in DeepSpeed's order: one a group in stages 1 and 2, sub-groups in stage 3. Fails
// (Code::unsupported) when the parameters of a buffer do not have the same states.
Result<std::vector<OutFlat>> cut_flats(const Content& what, const Catalog& content, EmitPlan& plan);

}  // namespace ebb::formats::deepspeed
