#include "ebb/libmuon/spec/blocks.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace ebb::libmuon {
namespace {

constexpr std::uint64_t kMaxMatrices = std::uint64_t{1} << 20;  // of one parameter

// A parameter as `count` matrices, one behind the other.
struct Stack {
  std::uint64_t count = 1, rows = 0, cols = 0;
  std::uint64_t elems() const { return rows * cols; }
};

bool flattened(const MuonSpec& spec, const Shape& shape) {
  return spec.dims == Dims::flatten || (spec.dims == Dims::flatten_4 && shape.size() > 3);
}

Stack stack_of(const MuonSpec& spec, const Shape& shape) {
  const std::size_t first = flattened(spec, shape) ? 0 : shape.size() - 2;
  const auto product = [&](std::size_t from, std::size_t to) {
    std::uint64_t all = 1;
    for (std::size_t i = from; i < to; ++i) all *= shape[i];
    return all;
  };
  return {product(0, first), shape[first], product(first + 1, shape.size())};
}

// A matrix' rows as parts that come again and again.
std::vector<std::uint64_t> parts_of(const Split& split, std::uint64_t rows) {
  switch (split.kind) {
    case Split::Kind::none:
      break;
    case Split::Kind::heads:
      return {rows / split.sizes.front()};
    case Split::Kind::rows:
    case Split::Kind::groups:
      return {split.sizes.begin(), split.sizes.end()};
  }
  return {rows};
}

// Parts of a split have moments of rows (check_moments).
bool moments_of_rows(const MuonSpec& spec, const Stack& stack) {
  return spec.split.kind != Split::Kind::none ||
         moments_of_rows(spec, Block::matrix(stack.rows, stack.cols));
}

double scale_of(const MuonSpec& spec, std::uint64_t rows, std::uint64_t cols) {
  auto r = static_cast<double>(rows), c = static_cast<double>(cols);
  if (spec.orientation == Orientation::cols_out) std::swap(r, c);
  switch (spec.scale) {
    case ScaleRule::sqrt_max_1_rows_over_cols:
      return std::sqrt(std::max(1.0, r / c)) * spec.scale_factor;
    case ScaleRule::match_rms_adamw:
      return 0.2 * std::sqrt(std::max(r, c)) * spec.scale_factor;
    case ScaleRule::sqrt_max:
      return std::sqrt(std::max(r, c)) * spec.scale_factor;
    case ScaleRule::sqrt_rows_over_cols:
      return std::sqrt(r / c) * spec.scale_factor;
    case ScaleRule::one:
      break;
  }
  return spec.scale_factor;
}

}  // namespace

Result<> check_split(const MuonSpec& spec, const Shape& shape) {
  const auto& [kind, sizes] = spec.split;
  const Stack stack = stack_of(spec, shape);
  const std::uint64_t sum = std::accumulate(sizes.begin(), sizes.end(), std::uint64_t{0});
  const bool exact = kind == Split::Kind::rows;
  if (kind != Split::Kind::none && (exact ? stack.rows != sum : stack.rows % sum != 0))
    return Error{Code::layout, compose("its {} rows are not {}{} of the split", stack.rows,
                                       exact ? "the " : "a multiple of the ", sum)};
  const std::uint64_t parts =
      kind == Split::Kind::heads ? sum : std::max<std::uint64_t>(1, sizes.size());
  if (stack.count <= kMaxMatrices / parts) return {};
  return Error{Code::limit, compose("it is {} stacked matrices of {} parts: the limit is {} in all",
                                    stack.count, parts, kMaxMatrices)};
}

std::vector<Block> blocks_of(const MuonSpec& spec, const Shape& shape) {
  EBB_CHECK(shape.size() >= 2);
  const Stack stack = stack_of(spec, shape);
  const auto parts = parts_of(spec.split, stack.rows);
  const std::uint64_t sum = std::accumulate(parts.begin(), parts.end(), std::uint64_t{0});
  const bool grouped = spec.split.kind == Split::Kind::groups;
  std::vector<Block> blocks;
  for (std::uint64_t matrix = 0; matrix < stack.count; ++matrix)
    for (std::uint64_t row = 0; row < (grouped ? sum : stack.rows);)
      for (const std::uint64_t rows : parts) {
        blocks.push_back({.first = matrix * stack.elems() + row * stack.cols,
                          .cols = stack.cols,
                          .run = rows,
                          .runs = grouped ? stack.rows / sum : 1,
                          .stride = grouped ? sum : rows});
        row += rows;
      }
  return blocks;
}

std::vector<FlatRange> matrix_runs_of(const MuonSpec& spec, const Shape& shape) {
  std::vector<FlatRange> runs;
  if (spec.split.kind == Split::Kind::groups) {  // its blocks lie in one another
    const Stack stack = stack_of(spec, shape);
    for (std::uint64_t matrix = 0; matrix < stack.count; ++matrix)
      runs.push_back({matrix * stack.elems(), stack.elems()});
    return runs;
  }
  for (const Block& block : blocks_of(spec, shape)) runs.push_back({block.first, block.elems()});
  return runs;
}

bool moments_of_rows(const MuonSpec& spec, const Block& block) {
  return spec.second_moment == SecondMoment::rows || block.rows() >= block.cols;
}

Result<> check_moments(const MuonSpec& spec, const Shape& shape) {
  if (spec.second_moment == SecondMoment::none || spec.split.kind == Split::Kind::none) return {};
  for (const Block& block : blocks_of(spec, shape))
    if (!moments_of_rows(spec, block))
      return Error{Code::layout,
                   compose("a part of its split, {} x {}, has second moments of columns",
                           block.rows(), block.cols)};
  return {};
}

Shape moments_shape(const MuonSpec& spec, const Shape& shape) {
  if (spec.second_moment == SecondMoment::none) return {};
  const Stack stack = stack_of(spec, shape);
  Shape moments = flattened(spec, shape) ? Shape{stack.rows, stack.cols} : shape;
  moments[moments.size() - (moments_of_rows(spec, stack) ? 1 : 2)] = 1;
  return moments;
}

FlatRange moments_of(const MuonSpec& spec, const Shape& shape, FlatRange whole) {
  if (spec.second_moment == SecondMoment::none) return {};
  const Stack stack = stack_of(spec, shape);
  const std::uint64_t each = moments_of_rows(spec, stack) ? stack.cols : stack.rows;
  return {whole.first / each, whole.count / each};
}

std::vector<Scaled> scales_of(const MuonSpec& spec, const Shape& shape, FlatRange range) {
  const Stack stack = stack_of(spec, shape);
  const auto parts = parts_of(spec.split, stack.rows);
  const std::uint64_t sum = std::accumulate(parts.begin(), parts.end(), std::uint64_t{0});
  const std::uint64_t runs = spec.split.kind == Split::Kind::groups ? stack.rows / sum : 1;
  std::vector<Scaled> all;
  std::uint64_t first = range.first;
  while (first < range.first + range.count) {
    // Its row in the run of parts that it lies in, and the part.
    std::uint64_t row = first / stack.cols % stack.rows % sum;
    std::size_t part = 0;
    for (; row >= parts[part]; ++part) row -= parts[part];
    const std::uint64_t end = (first / stack.cols + parts[part] - row) * stack.cols;
    const std::uint64_t count = std::min(end, range.first + range.count) - first;
    const double scale = spec.scale_of == ScaleOf::last_two && spec.split.kind == Split::Kind::none
                             ? scale_of(spec, shape[shape.size() - 2], shape.back())
                             : scale_of(spec, parts[part] * runs, stack.cols);
    if (!all.empty() && all.back().scale == scale)
      all.back().count += count;
    else
      all.push_back({first, count, scale});
    first += count;
  }
  return all;
}

}  // namespace ebb::libmuon
