// Turns the flat partitions of one rank into chunks of parameters. Internal to formats/deepspeed.
// Arithmetic: DeepSpeed stage_1_and_2.py and stage3.py; docs/formats/deepspeed.md.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "formats/deepspeed/checkpoint.h"
#include "formats/layout/layout.h"

namespace formats {

struct DsParam {
  std::string name;  // "": alignment padding between parameters
  Shape shape;
};

// Parameters that share flat buffers: a parameter group in stages 1 and 2, a sub-group in stage 3.
class DsGroup {
 public:
  static Result<DsGroup> make(std::vector<DsParam> params, Policy policy, std::uint32_t world);

  const std::vector<DsParam>& params() const { return params_; }
  const Layout& layout() const { return layout_; }
  // All elements of the parameters this rank holds any part of.
  std::uint64_t touched_elems(Rank rank) const;

 private:
  DsGroup(std::vector<DsParam> params, Layout layout)
      : params_(std::move(params)), layout_(std::move(layout)) {}
  std::vector<DsParam> params_;
  Layout layout_;
};

class DsPartitions {
 public:
  explicit DsPartitions(DsCheckpoint& checkpoint) : checkpoint_(checkpoint) {}

  // The rank's partition of one state, cut like the layout; `where` names file and group.
  Result<> add(const DsGroup& group, const std::string& state, Rank rank, const DsFlat& flat,
               const std::string& where);
  // DeepSpeed's Muon in stages 1 and 2 keeps the momentum of every parameter the rank touches,
  // whole. The lowest rank's copy is used.
  Result<> add_touched(const DsGroup& group, const std::string& state, Rank rank,
                       const DsFlat& flat, const std::string& where);
  // A tensor that one rank holds whole: an entry of the dict `module`.
  Result<> add_module(const std::string& name, const std::string& state, Rank rank,
                      const DsFlat& flat, const std::string& where);

 private:
  Result<TensorEntry*> entry(const std::string& name, const std::string& state, DType dtype,
                             const Shape& shape, const std::string& where);

  DsCheckpoint& checkpoint_;
  std::map<std::pair<std::string, std::string>, std::size_t> numbers_;
};

}  // namespace formats
