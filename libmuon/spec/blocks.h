// Which matrices a parameter is to its spec: a stack, one flattened, and their parts. Newton-Schulz
// and the scale see one of them at a time.
#pragma once

#include <cstdint>
#include <vector>

#include "ebb/formats/layout/box.h"
#include "ebb/libmuon/spec/spec.h"

namespace ebb::libmuon {

// `runs` times `run` rows of `cols` elements, one run each `stride` rows: a matrix of runs x run
// rows that lie apart.
struct Block {
  std::uint64_t first = 0;  // its first element in the parameter
  std::uint64_t cols = 0;
  std::uint64_t run = 0, runs = 1, stride = 0;

  static Block matrix(std::uint64_t rows, std::uint64_t cols) {
    return {.cols = cols, .run = rows, .stride = rows};
  }
  std::uint64_t rows() const { return run * runs; }
  std::uint64_t elems() const { return rows() * cols; }
  // From its first element to its last.
  std::uint64_t span() const { return ((runs - 1) * stride + run) * cols; }
  // Equal but for the place.
  bool alike(const Block& other) const {
    return cols == other.cols && run == other.run && runs == other.runs && stride == other.stride;
  }
};

// Code::layout where the split does not fit the shape, which has at least two dimensions.
Result<> check_split(const MuonSpec& spec, const Shape& shape);
// In the order of their first elements. REQUIRES, as below: check_split() passes.
std::vector<Block> blocks_of(const MuonSpec& spec, const Shape& shape);

// The parameter's elements in ranges that hold whole blocks, as short as they may be.
std::vector<FlatRange> matrix_runs_of(const MuonSpec& spec, const Shape& shape);

// Whether second moments of such a matrix are one a row; else they are one a column.
bool moments_of_rows(const MuonSpec& spec, const Block& block);
// The state of a parameter's second moments: its rows, dimension by dimension and then a 1, or the
// columns of each matrix. Empty: its spec keeps none.
Shape moments_shape(const MuonSpec& spec, const Shape& shape);
// Of that state, those of a range that holds whole blocks, or of a block from its first row to its
// last; count 0 if there are none.
FlatRange moments_of(const MuonSpec& spec, const Shape& shape, FlatRange whole);
// Code::layout where a split has second moments of columns: their parts are no rows of a state.
Result<> check_moments(const MuonSpec& spec, const Shape& shape);

// A range of a parameter's elements with one scale s.
struct Scaled {
  std::uint64_t first = 0, count = 0;
  double scale = 1;
};
// The elements [first, first + count), cut where the scale changes.
std::vector<Scaled> scales_of(const MuonSpec& spec, const Shape& shape, FlatRange range);

}  // namespace ebb::libmuon
