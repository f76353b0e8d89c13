// What attributes mean: a dataset's place in a larger tensor, and everything that is no tensor.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/hdf5/file_set.h"

namespace ebb::formats::hdf5 {

// A file that says format = "ebb" follows the convention of docs/formats/hdf5.md.
bool follows_convention(const File& file);

struct Meaning {
  std::string name;
  std::string state;
  DType dtype = DType::f32;
  Shape global_shape;
  Shape offset;  // of this dataset in the whole tensor
  std::uint32_t rank = 0;
};

// `path`: under which name it is listed, `stored`: what its elements are. Code::corrupt when
// attributes contradict each other, the shape or the type.
Result<Meaning> meaning_of(const File& file, const Dataset& dataset, const std::string& path,
                           DType stored);

// The rank that wrote it, where the file says so.
std::optional<std::uint32_t> rank_of(const File& file, const Dataset& dataset);

// Attributes and texts as values; groups, step and param_steps where a file of ours has them.
// Code::corrupt when files of one checkpoint are of different steps.
Result<> read_values(const FileSet& files, Catalog& catalog);

}  // namespace ebb::formats::hdf5
