#include <algorithm>
#include <cmath>
#include <limits>

#include "ebb/formats/core/element_values.h"
#include "ebb/formats/core/float_cast.h"
#include "ebb/formats/elements/box_reader.h"
#include "tools/ckpt_inspect/compare.h"

namespace ebb::tools::inspect {

using formats::BoxReader;
using formats::BoxStream;

namespace {

constexpr std::uint64_t kRunElems = std::uint64_t{1} << 18;
constexpr std::size_t kBlock = 4096;  // elements decoded at once

double distance(double a, double b) {
  if (std::isnan(a) || std::isnan(b))
    return std::isnan(a) && std::isnan(b) ? 0 : std::numeric_limits<double>::infinity();
  return a == b ? 0 : std::fabs(a - b);  // infinities of one sign are equal
}

// Takes both sides' elements, run by run, and keeps what is to be said about them.
class Findings {
 public:
  Findings(DType left, DType right) : left_(left), right_(right) {}

  // `left` and `right` are the same elements, from element `at` on.
  void add(std::uint64_t at, ByteView left, ByteView right) {
    if (left_ == right_ && std::ranges::equal(left, right)) return;
    const std::size_t x_bytes = formats::bytes_of(left_), y_bytes = formats::bytes_of(right_);
    const std::size_t elems = left.size() / x_bytes;
    for (std::size_t first = 0; first < elems; first += kBlock) {
      const std::size_t count = std::min(kBlock, elems - first);
      add_block(at + first, left.subspan(first * x_bytes, count * x_bytes),
                right.subspan(first * y_bytes, count * y_bytes), count);
    }
  }

  std::uint64_t differing() const { return differing_; }
  std::uint64_t first() const { return first_; }
  double largest() const { return largest_; }

 private:
  void add_block(std::uint64_t at, ByteView left, ByteView right, std::size_t count) {
    const std::size_t x_each = formats::values_per_element(left_);
    const std::size_t y_each = formats::values_per_element(right_);
    x_.resize(count * x_each);
    y_.resize(count * y_each);
    formats::element_values(left_, left, x_);
    formats::element_values(right_, right, y_);
    const std::size_t bytes = formats::bytes_of(left_);
    for (std::size_t i = 0; i < count; ++i) {
      double apart = 0;
      for (std::size_t part = 0; part < std::max(x_each, y_each); ++part)
        apart = std::max(apart, distance(part < x_each ? x_[i * x_each + part] : 0,
                                         part < y_each ? y_[i * y_each + part] : 0));
      // Of one dtype the bits count: -0.0 is not 0.0.
      const bool equal = left_ == right_ ? std::ranges::equal(left.subspan(i * bytes, bytes),
                                                              right.subspan(i * bytes, bytes))
                                         : apart == 0;
      if (equal) continue;
      if (differing_++ == 0) first_ = at + i;
      largest_ = std::max(largest_, apart);
    }
  }

  DType left_, right_;
  std::uint64_t differing_ = 0;
  std::uint64_t first_ = 0;
  double largest_ = 0;
  std::vector<double> x_, y_;
};

Shape index_of_element(const Shape& shape, std::uint64_t element) {
  Shape index(shape.size());
  for (std::size_t d = shape.size(); d-- > 0;) {
    index[d] = element % shape[d];
    element /= shape[d];
  }
  return index;
}

// Reads two whole tensors of one shape, the same elements of both at a time, while take(a's bytes,
// b's) wants more.
template <typename Take>
Result<> read_both(const Side& left, const TensorEntry& a, const Side& right, const TensorEntry& b,
                   Take take) {
  EBB_TRY_ASSIGN(const BoxReader a_reader, BoxReader::open(left.checkpoint, a));
  EBB_TRY_ASSIGN(const BoxReader b_reader, BoxReader::open(right.checkpoint, b));
  EBB_TRY_ASSIGN(BoxStream a_stream, BoxStream::open(a_reader, formats::whole(a.shape)));
  EBB_TRY_ASSIGN(BoxStream b_stream, BoxStream::open(b_reader, formats::whole(b.shape)));
  const std::size_t a_bytes = a_reader.elem_bytes(), b_bytes = b_reader.elem_bytes();
  ByteVector x, y;
  while (a_stream.bytes_left() > 0) {
    const std::uint64_t elems = std::min(kRunElems, a_stream.bytes_left() / a_bytes);
    x.resize(elems * a_bytes);
    y.resize(elems * b_bytes);
    EBB_TRY(a_stream.read(x));
    EBB_TRY(b_stream.read(y));
    if (!take(ByteView(x), ByteView(y))) break;
  }
  return {};
}

enum class Rounding : std::uint8_t { none, right_to_left };
// right_to_left: the right one's elements are rounded to the left one's dtype first.
Result<Findings> compare_values(const Side& left, const TensorEntry& a, const Side& right,
                                const TensorEntry& b, Rounding rounding) {
  const bool round = rounding == Rounding::right_to_left;
  Findings findings(a.dtype, round ? a.dtype : b.dtype);
  ByteVector rounded;
  std::uint64_t at = 0;
  EBB_TRY(read_both(left, a, right, b, [&](ByteView x, ByteView y) {
    if (round) {
      rounded.resize(x.size());
      formats::cast_floats(b.dtype, y, a.dtype, rounded);
      y = rounded;
    }
    findings.add(at, x, y);
    at += x.size() / formats::bytes_of(a.dtype);
    return true;
  }));
  return findings;
}

// Sub-byte types are compared as they lie.
Result<bool> packed_equal(const Side& left, const TensorEntry& a, const Side& right,
                          const TensorEntry& b) {
  bool equal = true;
  EBB_TRY(read_both(left, a, right, b,
                    [&](ByteView x, ByteView y) { return equal = std::ranges::equal(x, y); }));
  return equal;
}

std::optional<TensorDifference> said(const Findings& findings, TensorDifference difference) {
  if (findings.differing() == 0 && difference.kind != TensorDifference::Kind::dtype)
    return std::nullopt;
  difference.differing = findings.differing();
  if (findings.differing() != 0) {
    difference.first = index_of_element(difference.left->shape, findings.first());
    difference.largest = findings.largest();
  }
  return difference;
}

// A weight that one side alone stores, against the other's master rounded to its dtype.
Result<std::optional<TensorDifference>> compare_derived(const Side& left, const Side& right,
                                                        const Match& match) {
  const bool stored_left = match.left != nullptr;
  const TensorEntry& weight = stored_left ? *match.left : *match.right;
  EBB_TRY_ASSIGN(const Findings findings,
                 compare_values(stored_left ? left : right, weight, stored_left ? right : left,
                                *match.master, Rounding::right_to_left));
  TensorDifference difference{TensorDifference::Kind::values, stored_left ? &weight : match.master,
                              stored_left ? match.master : &weight};
  difference.derived = true;
  return said(findings, difference);
}

}  // namespace

Result<std::optional<TensorDifference>> compare_tensors(const Side& left, const Side& right,
                                                        const Match& match) {
  using Kind = TensorDifference::Kind;
  using Found = std::optional<TensorDifference>;
  if (match.master != nullptr) return compare_derived(left, right, match);
  if (match.right == nullptr) return Found({Kind::only_left, match.left, nullptr});
  if (match.left == nullptr) return Found({Kind::only_right, nullptr, match.right});
  const TensorEntry& a = *match.left;
  const TensorEntry& b = *match.right;
  if (a.shape != b.shape) return Found({Kind::shape, &a, &b});
  const Kind kind = a.dtype == b.dtype ? Kind::values : Kind::dtype;
  if (formats::values_per_element(a.dtype) == 0 || formats::values_per_element(b.dtype) == 0) {
    if (kind == Kind::dtype) return Found({kind, &a, &b});
    EBB_TRY_ASSIGN(const bool equal, packed_equal(left, a, right, b));
    return equal ? Found() : Found({kind, &a, &b});
  }
  EBB_TRY_ASSIGN(const Findings findings, compare_values(left, a, right, b, Rounding::none));
  return said(findings, {kind, &a, &b});
}

}  // namespace ebb::tools::inspect
