// How the parts that tensor-parallel ranks have of a tensor make the whole one: what the entry
// `universal_checkpoint_info` of the model files records, by patterns of names. Equal shapes tell
// nothing, so without it nothing is joined. Internal to formats/deepspeed. Source: DeepSpeed 0.19.8
// checkpoint/ds_to_universal.py and affine.py.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/deepspeed/name_pattern.h"

namespace ebb::formats::deepspeed {

// A box of a part, and where in the whole its first element lies.
struct PartPiece {
  Box box;
  Shape at;
};
struct WholeTensor {
  Shape shape;
  std::vector<std::vector<PartPiece>> of_ranks;  // without what a rank before has, too
  std::vector<std::size_t> copies;               // ranks that have all of it again
  std::uint64_t left_out = 0;                    // rows of padding behind the vocabulary
  // Whether it is what the first rank has, or the mean of what all have.
  enum class From : std::uint8_t { the_first, the_mean } from = From::the_first;
};

class TensorParts {
 public:
  // Code::unsupported without the entry. `ranks`: of tensor parallelism.
  static Result<TensorParts> open(const Value* info, std::uint32_t ranks);

  // `parts`: the shape that each rank has of it. Code::unsupported: nothing says how it is joined,
  // or in a way that no copying of elements is.
  Result<WholeTensor> whole_of(std::string_view name, const std::vector<Shape>& parts) const;
  // Parameters are cut, and nothing else, where DeepSpeed itself did it (AutoTP).
  bool by_autotp() const { return by_autotp_; }

 private:
  struct Known {
    NamePattern pattern;
    std::string text;
    const Value* value = nullptr;  // what belongs to it, in `info`
  };
  using List = std::vector<Known>;

  static Result<List> list_of(const Value& info, std::string_view key);
  static const Known* find(const List& list, std::string_view name);
  Result<WholeTensor> merged(std::string_view name, const std::vector<Shape>& parts) const;
  Result<WholeTensor> by_map(const Value& map, const std::vector<Shape>& parts) const;
  Result<WholeTensor> by_sub_params(const Known& known, std::string_view name,
                                    const std::vector<Shape>& parts) const;

  const Value* info_ = nullptr;
  std::uint32_t ranks_ = 1;
  bool by_autotp_ = false;
  double version_ = 0;
  List unsupported_, maps_, copies_, averages_, halves_, sub_params_, rows_, vocabulary_;
};

// The chunks of a rank's part, where they lie in the whole.
Result<> place_chunks(const TensorEntry& part, const std::vector<PartPiece>& pieces,
                      TensorEntry& whole);

}  // namespace ebb::formats::deepspeed
