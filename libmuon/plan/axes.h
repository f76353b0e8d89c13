// A world with axes: the ranks of a job as a grid, and partitions of parameters that are not cut
// over all of it. A mixture of experts on 2 x 4 ranks keeps half of its experts at each coordinate
// of the first axis, cut over the second:
//   .axes = {{"expert", 2}, {"data", 4}},
//   .parts = {{"experts", {{.policy = Policy::zero3}, {"data"}},
//                         {{.policy = Policy::zero3}, {"data"}}}}
//   {"layer.0.expert.5.up", {768, 2048}, 0, "experts", {{"expert", 1}}}
// Values; what they mean for each rank is ParamClass.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ebb/formats/layout/layout.h"

namespace ebb::libmuon {

// A rank is the row-major index of its coordinates: the last axis is the fastest.
struct Axis {
  std::string name;
  std::uint32_t size = 1;
};

// A place on an axis.
struct Coordinate {
  std::string axis;
  std::uint32_t index = 0;
};

// A layout whose mesh is made from axes, and left out.
struct AxisLayout {
  Layout::Spec layout;
  std::vector<std::string> shards = {};  // cut over these, the last is the fastest
  std::vector<std::string> copies = {};  // at each of these the same
};

// Gradients and weights lie on the same axes. Where that are not all, a parameter names its place
// on the others, or is cut over them.
struct AxisPartition {
  std::string name;
  AxisLayout gradients;  // as PartitionSpec's
  AxisLayout weights;
};

// A dimension of a parameter that is cut over an axis, as torch.chunk() cuts: each part of as many
// places as the first, the last ones of fewer or none. Tensor parallelism does so, and FSDP of
// experts that another axis has dealt out. Each place on the axis has one part, a slice, which the
// next cut cuts, and in the end the parameter's partition, that leaves these axes out. A matrix is
// whole all the same where it is orthogonalized: Newton-Schulz of each slice is a Split of its
// spec.
//   .axes = {{"data", 4}, {"tensor", 2}},
//   .parts = {{"linear", {{.policy = Policy::zero3}, {"data"}}, {{.policy = Policy::zero3},
//              {"data"}}}}
//   {"layer.0.down", {2048, 8192}, 0, "linear", {}, {{"tensor", 1}}}
struct DimensionCut {
  std::string axis;
  std::uint32_t dimension = 0;
};

}  // namespace ebb::libmuon
