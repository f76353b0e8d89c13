// Classes: parameters, or slices of them, that are cut alike, on the same ranks. A world without
// axes has one; a mixture of experts has one of its dense parameters and one for each coordinate of
// its experts; tensor parallelism has one for each coordinate, with its slices.
// Pure arithmetic, the same on all ranks.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "ebb/libmuon/plan/model.h"
#include "ebb/libmuon/plan/slice.h"

namespace ebb::libmuon {

struct ParamClass {
  // 0: PartitionSpec itself, else behind it in PartitionSpec::parts. Classes of one partition have
  // no rank in common.
  std::uint32_t partition = 0;
  std::string name;  // as errors have it; empty: PartitionSpec itself
  // As the trainer's; on different meshes of the same ranks.
  Layout::Spec gradients, weights;
  Layout::Spec shards;                // where AdamW state lies, each element at one rank
  std::vector<std::uint32_t> params;  // ascending
  std::vector<Slice> slices;          // of those; none where none is cut
  std::shared_ptr<const std::vector<Shape>> shapes;  // of what it has of those
};

// The first one is PartitionSpec's own, with or without parameters. Fails (Code::usage,
// Code::layout, Code::limit, Code::unsupported) naming the parameter, the partition or the axis.
Result<std::vector<ParamClass>> classes_of(const ModelSpec& model, const PartitionSpec& partition);

// How many ranks it describes; above the limit of a mesh where the axes are.
std::uint32_t world_of(const PartitionSpec& partition);
// "expert 2 x data 4"
std::string text_of(const std::vector<Axis>& axes);

}  // namespace ebb::libmuon
