// One matrix on its way through Newton-Schulz: its place in the scratch and what is done with it,
// panel by panel. newton_schulz.cpp puts the stages in order.
#pragma once

#include <algorithm>
#include <array>
#include <span>
#include <vector>

#include "ebb/formats/core/units.h"
#include "ebb/libmuon/kernels/bf16.h"
#include "ebb/libmuon/kernels/forms.h"
#include "ebb/libmuon/kernels/kernels.h"
#include "ebb/libmuon/kernels/products.h"
#include "ebb/libmuon/spec/blocks.h"

namespace ebb::libmuon {

// Whole vectors, and an odd number of cache lines: rows of a power of two would share a few sets.
inline std::uint64_t leading_dimension(std::uint64_t cols) {
  constexpr std::uint64_t kLine = 16;
  return formats::align_up(cols, kLine) | kLine;
}

// In fp64; bits depend on the values and their number alone.
double sum_of_squares(const float* values, std::uint64_t count);

// The sum of an update's squares as decide() makes it, of elements that come bit by bit.
class SquareSum {
 public:
  static constexpr std::uint64_t kLanes = 16;
  void add(std::span<const float> values);
  double total() const;

 private:
  std::array<double, kLanes> lanes_{};  // of the chunk that is not whole yet
  std::uint64_t held_ = 0;              // elements of it
  double chunks_ = 0;
};

// The rows of an m-row matrix, cut for the pool. The higher a panel, the fewer times B is read; the
// lower, the less is computed right of the diagonal.
struct Panels {
  std::uint64_t rows;
  std::uint64_t height;

  explicit Panels(std::uint64_t m) : rows(m), height(m <= 512 ? 64 : 128) {}
  std::uint64_t count() const { return formats::div_ceil(rows, height); }
  std::uint64_t begin(std::uint64_t panel) const { return panel * height; }
  std::uint64_t end(std::uint64_t panel) const { return std::min(rows, (panel + 1) * height); }
};

inline bool takes_gram_form(const MuonSpec& spec, std::uint64_t rows, std::uint64_t cols) {
  return spec.form == Form::gram && rows != cols;
}

// How X lies: `m` rows of `n` numbers at most, the rows of U or, where it is tall, its columns.
struct Sides {
  std::uint64_t m = 0, n = 0;
  bool tall = false, gram_form = false;
};

class Run {
 public:
  // `u` is the block's, from its first element to its last. Both are borrowed.
  Run(const MuonSpec& spec, Bf16 bf16, const Block& block, std::span<float> u,
      std::span<std::byte> scratch, NonFinite non_finite);
  static std::uint64_t scratch_bytes(const MuonSpec& spec, std::uint64_t rows, std::uint64_t cols);

  const MuonSpec& spec() const { return spec_; }
  bool gram_form() const { return sides_.gram_form; }
  std::size_t panels() const { return panels_.count(); }
  std::size_t norm_chunks() const { return sums_.size(); }

  // Rounds U as it is handed over and sums its squares; behind all of them, the divisor. A matrix
  // of zeros, or one that is not finite, gives zeros.
  void square(std::size_t chunk);
  void decide();
  void decide(double squares);
  // Cut along the short side: a panel of X is a panel of rows, or of columns, of U.
  void load(std::size_t panel);
  void store(std::size_t panel);

  // The right side of a product, slice by slice; it stays until another is packed. The second: X^T.
  std::size_t slices() const { return products_.slices(sides_.m); }
  void pack(Part part, std::size_t slice);
  std::size_t transposed_slices() const { return products_.slices(sides_.n); }
  void pack_transposed(std::size_t slice);

  // Below, rows of a panel, with what is packed on the right; of X X^T, and in fp32 of all square
  // parts, only up to the diagonal panel, until they are mirrored. Operands or results are rounded
  // as the spec says: what is no more symmetric then errs less than its mirror image.

  void make_gram(std::size_t panel);
  // Its two halves. `adds`: to the sum over earlier columns of X.
  void sum_gram(std::size_t panel, bool adds);
  void settle_gram(std::size_t panel);
  // `y` is used unless alpha is 1. `to` may be `right`, which is packed, but then not `from`.
  void add(const Sum& sum, std::size_t panel);
  // to = from + value I.
  void add_identity(Part to, Part from, float value, std::size_t panel);
  void mirror(Part part, std::size_t panel);

  // Whether square parts that add() makes are to be mirrored.
  bool mirrors() const { return spec_.precision == Precision::fp32; }

  // Where the next X goes.
  Part next_x() const { return spec_.precision == Precision::fp32 ? Part::x : Part::y; }

  void swap(Part a, Part b) { std::swap(place(a), place(b)); }

 protected:
  Run(const MuonSpec& spec, Bf16 bf16, const Block& block, const Sides& sides,
      std::span<std::byte> scratch, NonFinite non_finite);
  static std::uint64_t scratch_bytes(const MuonSpec& spec, const Sides& sides);
  static std::uint64_t x_leading_dimension(const MuonSpec& spec, const Sides& sides);
  // The next X.
  void take(const Block& block, std::span<float> u);
  bool tall() const { return sides_.tall; }
  std::uint64_t m() const { return sides_.m; }
  void round_update(std::span<float> values);
  void look_at(Part part);  // tells where it is not finite
  float*& place(Part part) { return places_[static_cast<std::size_t>(part)]; }

 private:
  float* row(Part part, std::uint64_t index) { return place(part) + index * ld(part); }
  std::uint64_t ld(Part part) const { return part <= Part::y ? x_ld_ : a_ld_; }
  std::uint64_t cols(Part part) const { return part <= Part::y ? n_ : m(); }
  bool separate() const {
    return kept_as(spec_.precision) != Precision::fp32 && spec_.rounding != Rounding::fused;
  }
  void settle(float* values, std::uint64_t count);
  void finish_row(const Sum& sum, std::uint64_t index, std::uint64_t count);
  std::uint64_t run_elems() const { return block_.run * block_.cols; }
  std::uint64_t chunks_a_run() const;
  float* u_row(std::uint64_t index) {
    return u_.data() + (index / block_.run * block_.stride + index % block_.run) * block_.cols;
  }

  const MuonSpec spec_;
  const Products& products_;
  Block block_;
  const Sides sides_;
  std::uint64_t n_;  // of the present X
  const Panels panels_;
  const std::uint64_t x_ld_, a_ld_;
  std::span<float> u_;
  const NonFinite non_finite_;
  std::array<float*, 6> places_{};
  float* packed_ = nullptr;
  std::vector<double> sums_;
  bool alive_ = false;
  double factor_ = 0;
};

}  // namespace ebb::libmuon
