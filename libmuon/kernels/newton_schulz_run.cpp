#include "ebb/libmuon/kernels/newton_schulz_run.h"

#include <cmath>

#include "ebb/libmuon/kernels/kernels.h"
#include "ebb/libmuon/kernels/rounding.h"

namespace ebb::libmuon {
namespace {

constexpr std::uint64_t kNormChunk = 8192;  // elements of U whose squares are summed at a time
constexpr std::uint64_t kNormLanes = SquareSum::kLanes;
constexpr std::uint64_t kTile = 16;  // side of the squares that transposing moves

}  // namespace

namespace {

// Fixed lanes, so that every vector width adds in the same order.
EBB_CLONES void add_squares(const float* __restrict values, std::uint64_t count,
                            double* __restrict lanes) {
  const std::uint64_t whole = count / kNormLanes * kNormLanes;
  for (std::uint64_t i = 0; i < whole; i += kNormLanes)
    for (std::uint64_t lane = 0; lane < kNormLanes; ++lane) {
      const double value = static_cast<double>(values[i + lane]);
      lanes[lane] += value * value;
    }
  for (std::uint64_t i = whole; i < count; ++i)
    lanes[i - whole] += static_cast<double>(values[i]) * static_cast<double>(values[i]);
}

double sum_of(std::span<const double> lanes) {
  double total = 0;
  for (const double lane : lanes) total += lane;
  return total;
}

}  // namespace

double sum_of_squares(const float* values, std::uint64_t count) {
  std::array<double, kNormLanes> lanes{};
  add_squares(values, count, lanes.data());
  return sum_of(lanes);
}

// Pieces that end inside a group of lanes come element by element.
void SquareSum::add(std::span<const float> values) {
  while (!values.empty()) {
    const std::uint64_t lane = held_ % kNormLanes;
    const std::uint64_t room = lane == 0 ? kNormChunk - held_ : 1;
    const auto next = values.first(std::min<std::uint64_t>(room, values.size()));
    add_squares(next.data(), next.size(), lanes_.data() + lane);
    values = values.subspan(next.size());
    held_ += next.size();
    if (held_ < kNormChunk) continue;
    chunks_ += sum_of(lanes_);
    lanes_ = {};
    held_ = 0;
  }
}

double SquareSum::total() const { return held_ == 0 ? chunks_ : chunks_ + sum_of(lanes_); }

namespace {

// In double: the factor of a tiny matrix does not fit fp32.
EBB_CLONES void scale_row(double factor, std::uint64_t count, float* row) {
  for (std::uint64_t i = 0; i < count; ++i)
    row[i] = static_cast<float>(static_cast<double>(row[i]) * factor);
}

EBB_CLONES void multiply_row(const float* __restrict from, float factor, std::uint64_t count,
                             float* __restrict to) {
  for (std::uint64_t i = 0; i < count; ++i) to[i] = factor * from[i];
}

EBB_CLONES void combine_row(const float* __restrict from, float beta, float alpha,
                            std::uint64_t count, float* __restrict to) {
  for (std::uint64_t i = 0; i < count; ++i) to[i] = beta * from[i] + alpha * to[i];
}

template <Precision kPrecision>
[[gnu::always_inline]] inline void add_rounded(const float* __restrict from, float factor,
                                               std::uint64_t count, float* __restrict to) {
  for (std::uint64_t i = 0; i < count; ++i) to[i] += rounded<kPrecision>(factor * from[i]);
}
EBB_CLONES void add_rounded_bf16(const float* from, float factor, std::uint64_t count, float* to) {
  add_rounded<Precision::bf16>(from, factor, count, to);
}
EBB_CLONES void add_rounded_fp16(const float* from, float factor, std::uint64_t count, float* to) {
  add_rounded<Precision::fp16>(from, factor, count, to);
}

// to(cols x rows) = transposed from(rows x cols). Tiles go through a buffer, so each line of memory
// is touched once: strides are often multiples of 4 KiB.
void transpose(const float* from, std::uint64_t from_ld, std::uint64_t rows, std::uint64_t cols,
               float* to, std::uint64_t to_ld) {
  float tile[kTile][kTile];
  for (std::uint64_t r0 = 0; r0 < rows; r0 += kTile)
    for (std::uint64_t c0 = 0; c0 < cols; c0 += kTile) {
      const std::uint64_t high = std::min(kTile, rows - r0), wide = std::min(kTile, cols - c0);
      for (std::uint64_t r = 0; r < high; ++r)
        std::copy_n(from + (r0 + r) * from_ld + c0, wide, tile[r]);
      for (std::uint64_t c = 0; c < wide; ++c)
        for (std::uint64_t r = 0; r < high; ++r) to[(c0 + c) * to_ld + r0 + r] = tile[r][c];
    }
}

const Products& products_for(Precision precision, Bf16 bf16) {
  const bool real = precision == Precision::bf16 && bf16 == Bf16::real;
  const Operands rounded = precision == Precision::tf32 ? Operands::tf32 : Operands::fp32;
  const Products* const found = products(best_isa(), real ? Operands::bf16 : rounded);
  EBB_CHECK(found != nullptr);
  return *found;
}

}  // namespace

// Nobody's precision decides what a plan says of memory but that of the spec: packed as bf16, a
// matrix takes half of what is there for it.
std::uint64_t Run::scratch_bytes(const MuonSpec& spec, std::uint64_t rows, std::uint64_t cols) {
  return scratch_bytes(spec, {.m = std::min(rows, cols),
                              .n = std::max(rows, cols),
                              .gram_form = takes_gram_form(spec, rows, cols)});
}

// Where factors are rounded, those of m x m pass through a second X.
std::uint64_t Run::x_leading_dimension(const MuonSpec& spec, const Sides& sides) {
  const bool factors =
      kept_as(spec.precision) != Precision::fp32 && spec.rounding == Rounding::each;
  return leading_dimension(factors ? std::max(sides.m, sides.n) : sides.n);
}

std::uint64_t Run::scratch_bytes(const MuonSpec& spec, const Sides& sides) {
  const std::uint64_t m = sides.m, n = sides.n;
  const std::uint64_t wide = spec.precision == Precision::fp32 ? 1 : 2;
  const std::uint64_t squares = sides.gram_form ? 4 : 2;
  const std::uint64_t packed =
      std::max({packed_elems(n, m), packed_elems(m, n), packed_elems(m, m)});
  const std::uint64_t row = x_leading_dimension(spec, sides);
  return sizeof(float) * (m * (wide * row + squares * leading_dimension(m)) + packed);
}

Run::Run(const MuonSpec& spec, Bf16 bf16, const Block& block, std::span<float> u,
         std::span<std::byte> scratch, NonFinite non_finite)
    : Run(spec, bf16, block,
          {.m = std::min(block.rows(), block.cols),
           .n = std::max(block.rows(), block.cols),
           .tall = block.rows() > block.cols,
           .gram_form = takes_gram_form(spec, block.rows(), block.cols)},
          scratch, non_finite) {
  take(block, u);
  sums_.resize(block.runs * chunks_a_run());
}

Run::Run(const MuonSpec& spec, Bf16 bf16, const Block& block, const Sides& sides,
         std::span<std::byte> scratch, NonFinite non_finite)
    : spec_(spec),
      products_(products_for(spec.precision, bf16)),
      block_(block),
      sides_(sides),
      n_(sides.n),
      panels_(sides.m),
      x_ld_(x_leading_dimension(spec, sides)),
      a_ld_(leading_dimension(sides.m)),
      non_finite_(non_finite) {
  EBB_CHECK(scratch.size() >= scratch_bytes(spec, sides));
  auto* next = reinterpret_cast<float*>(scratch.data());
  for (const Part part : {Part::x, Part::y, Part::gram, Part::q, Part::z, Part::t}) {
    if (part == Part::y && next_x() == Part::x) continue;
    if (part >= Part::z && !gram_form()) break;
    next = (place(part) = next) + m() * ld(part);
  }
  packed_ = next;
}

void Run::take(const Block& block, std::span<float> u) {
  EBB_CHECK(u.size() == block.span());
  block_ = block;
  n_ = tall() ? block.rows() : block.cols;
  EBB_CHECK(n_ <= sides_.n);
  u_ = u;
}

std::uint64_t Run::chunks_a_run() const { return formats::div_ceil(run_elems(), kNormChunk); }

void Run::square(std::size_t chunk) {
  const std::uint64_t first = chunk % chunks_a_run() * kNormChunk;
  const auto values = u_.subspan(chunk / chunks_a_run() * block_.stride * block_.cols + first,
                                 std::min(kNormChunk, run_elems() - first));
  round_update(values);
  sums_[chunk] = sum_of_squares(values.data(), values.size());
}

void Run::round_update(std::span<float> values) {
  round_all(spec_.handed, values);
  round_all(norm_precision(spec_), values);
}

void Run::decide() { decide(sum_of(sums_)); }

void Run::decide(double squares) {
  const double norm = std::sqrt(squares);
  alive_ = norm != 0 && std::isfinite(norm);
  if (!std::isfinite(norm)) non_finite_.tell();
  factor_ = normalizer(spec_, norm);
}

void Run::load(std::size_t panel) {
  if (!alive_) return;
  const std::uint64_t first = panels_.begin(panel), end = panels_.end(panel);
  if (tall())
    for (std::uint64_t i = 0; i < block_.rows(); i += block_.run)
      transpose(u_row(i) + first, m(), block_.run, end - first, row(Part::x, first) + i, x_ld_);
  for (std::uint64_t i = first; i < end; ++i) {
    float* const x = row(Part::x, i);
    if (!tall()) std::copy_n(u_row(i), n_, x);
    scale_row(factor_, n_, x);
    round_all(norm_precision(spec_), {x, n_});
    settle(x, n_);
  }
}

void Run::store(std::size_t panel) {
  const std::uint64_t first = panels_.begin(panel), end = panels_.end(panel);
  for (std::uint64_t i = first; i < end; ++i) {
    float* const x = row(Part::x, i);
    if (!alive_) std::fill_n(x, n_, 0.0f);
    round_all(handed_back(spec_), {x, n_});
    if (!std::isfinite(largest_magnitude({x, n_}))) non_finite_.tell();
    if (!tall()) std::copy_n(x, n_, u_row(i));
  }
  if (tall())
    for (std::uint64_t i = 0; i < block_.rows(); i += block_.run)
      transpose(row(Part::x, first) + i, x_ld_, end - first, block_.run, u_row(i) + first, m());
}

void Run::settle(float* values, std::uint64_t count) {
  round_all(kept_as(spec_.precision), {values, count});
}

void Run::pack(Part part, std::size_t slice) {
  if (alive_) products_.pack({place(part), ld(part)}, cols(part), m(), slice, packed_);
}

void Run::pack_transposed(std::size_t slice) {
  if (alive_ && slice < products_.slices(n_))
    products_.pack({place(Part::x), x_ld_, Transpose::yes}, m(), n_, slice, packed_);
}

void Run::make_gram(std::size_t panel) {
  sum_gram(panel, false);
  settle_gram(panel);
}

void Run::sum_gram(std::size_t panel, bool adds) {
  if (!alive_) return;
  const std::uint64_t first = panels_.begin(panel), end = panels_.end(panel);
  products_.multiply(end - first, end, n_, {row(Part::x, first), x_ld_}, packed_, m(),
                     row(Part::gram, first), a_ld_, adds);
}

void Run::settle_gram(std::size_t panel) {
  if (!alive_) return;
  const std::uint64_t first = panels_.begin(panel), end = panels_.end(panel);
  for (std::uint64_t i = first; i < end; ++i) settle(row(Part::gram, i), end);
}

void Run::add(const Sum& sum, std::size_t panel) {
  if (!alive_) return;
  const std::uint64_t first = panels_.begin(panel), end = panels_.end(panel);
  const std::uint64_t count = sum.right == Part::x ? n_ : mirrors() ? end : m();
  MatrixView left = {row(sum.left, first), ld(sum.left)};
  if (separate() && sum.alpha != 1 && spec_.rounding == Rounding::each) {
    for (std::uint64_t i = first; i < end; ++i) {
      multiply_row(row(sum.left, i), sum.alpha, m(), row(Part::y, i));
      settle(row(Part::y, i), m());
    }
    left = {row(Part::y, first), x_ld_};
  }
  products_.multiply(end - first, count, m(), left, packed_, cols(sum.right), row(sum.to, first),
                     ld(sum.to), false);
  for (std::uint64_t i = first; i < end; ++i) finish_row(sum, i, count);
}

void Run::finish_row(const Sum& sum, std::uint64_t index, std::uint64_t count) {
  float* const to = row(sum.to, index);
  const float* const from = row(sum.from, index);
  if (!separate()) {
    if (sum.alpha != 1 || sum.beta != 0) combine_row(from, sum.beta, sum.alpha, count, to);
    return settle(to, count);
  }
  settle(to, count);
  if (sum.alpha != 1 && spec_.rounding == Rounding::each_product_first) {
    scale_row(double{sum.alpha}, count, to);
    settle(to, count);
  }
  if (sum.beta == 0) return;
  (spec_.precision == Precision::bf16 ? add_rounded_bf16 : add_rounded_fp16)(from, sum.beta, count,
                                                                             to);
  settle(to, count);
}

void Run::add_identity(Part to, Part from, float value, std::size_t panel) {
  if (!alive_) return;
  for (std::uint64_t i = panels_.begin(panel); i < panels_.end(panel); ++i) {
    float* const into = row(to, i);
    if (to != from) std::copy_n(row(from, i), m(), into);
    into[i] += value;
    settle(into + i, 1);
  }
}

void Run::look_at(Part part) {
  if (!alive_) return;
  for (std::uint64_t i = 0; i < m(); ++i)
    if (!std::isfinite(largest_magnitude({row(part, i), cols(part)}))) return non_finite_.tell();
}

// Right of the diagonal panels := the transpose of what lies below them.
void Run::mirror(Part part, std::size_t panel) {
  if (!alive_) return;
  const std::uint64_t first = panels_.begin(panel), end = panels_.end(panel);
  transpose(row(part, end) + first, a_ld_, m() - end, end - first, row(part, first) + end, a_ld_);
}

}  // namespace ebb::libmuon
