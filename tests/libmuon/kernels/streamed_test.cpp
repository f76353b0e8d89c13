// A matrix that comes panel by panel, beside the same one whole.
#include "ebb/libmuon/kernels/streamed.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "ebb/formats/core/units.h"
#include "ebb/libmuon/kernels/newton_schulz_run.h"
#include "ebb/libmuon/spec/presets.h"
#include "tests/libmuon/kernels/numbers.h"

namespace ebb::libmuon {
namespace {

using testing::gaussian;
using testing::same_bits;

// `panel`: of a tall one rows, of a wide one columns.
struct Case {
  std::uint64_t rows, cols, panel;
  bool tall() const { return rows > cols; }
  StreamedMatrix::Panels panels() const {
    return tall() ? StreamedMatrix::Panels{panel, cols, true}
                  : StreamedMatrix::Panels{rows, panel, false};
  }
};

// Two panels and more, the last of them short; of more rows, or columns, than a panel has.
constexpr Case kCases[] = {{1100, 96, 512}, {1537, 130, 512}, {1100, 257, 1024}, {1030, 1, 512},
                           {600, 530, 512}, {96, 1100, 512},  {130, 1537, 512},  {257, 1100, 1024},
                           {1, 1030, 512},  {530, 600, 512}};

// Those of a panel of `whole`, row by row; their place there gets them back.
std::vector<float> taken(const Case& size, std::vector<float>& whole, std::uint64_t first,
                         std::vector<float>* back = nullptr) {
  const std::uint64_t count = std::min(size.panel, std::max(size.rows, size.cols) - first);
  const std::uint64_t rows = size.tall() ? count : size.rows,
                      cols = size.tall() ? size.cols : count;
  std::vector<float> panel(rows * cols);
  for (std::uint64_t i = 0; i < rows; ++i)
    for (std::uint64_t j = 0; j < cols; ++j) {
      float& there = size.tall() ? whole[(first + i) * cols + j] : whole[i * size.cols + first + j];
      if (back != nullptr)
        there = (*back)[i * cols + j];
      else
        panel[i * cols + j] = there;
    }
  return panel;
}

// U as an engine makes it: anew in every pass, whose kernels may spoil it. Pieces of the first pass
// end anywhere.
std::vector<float> streamed(const MuonSpec& spec, Bf16 bf16, const Case& size,
                            const std::vector<float>& u, std::uint32_t* non_finite = nullptr) {
  const auto pool = libswap::Pool::start(3);
  if (!pool) return {};
  std::vector<std::byte> scratch(StreamedMatrix::scratch_bytes(spec, size.panels()),
                                 std::byte{0x7f});
  StreamedMatrix matrix(spec, bf16, size.panels(), scratch, {non_finite, 1});
  std::vector<float> made;
  for (std::uint64_t first = 0; first < u.size(); first += 7001) {
    std::vector<float> some(
        u.begin() + static_cast<std::ptrdiff_t>(first),
        u.begin() + static_cast<std::ptrdiff_t>(std::min<std::uint64_t>(u.size(), first + 7001)));
    matrix.add_squares(some);
  }
  const std::uint64_t along = std::max(size.rows, size.cols);
  for (std::uint32_t pass = 2; pass <= StreamedMatrix::passes(spec); ++pass) {
    made = u;
    for (std::uint64_t first = 0; first < along; first += size.panel) {
      std::vector<float> panel = taken(size, made, first);
      (*pool)->help_until(
          (*pool)->begin(matrix.next({pass, first == 0, first + size.panel >= along, panel})));
      taken(size, made, first, &panel);
    }
  }
  return made;
}

std::vector<float> whole(const MuonSpec& spec, Bf16 bf16, const Case& size, std::vector<float> u) {
  libswap::Pool pool;
  orthogonalize(spec, bf16, Block::matrix(size.rows, size.cols), u, pool);
  return u;
}

std::vector<MuonSpec> gram_specs() {
  std::vector<MuonSpec> specs;
  for (const Precision precision :
       {Precision::fp32, Precision::bf16, Precision::fp16, Precision::tf32})
    for (const std::vector<std::uint32_t>& restarts :
         {std::vector<std::uint32_t>{}, {2}, {1, 2, 4}}) {
      MuonSpec spec = MuonSpec::keller();
      spec.form = Form::gram;
      spec.precision = precision;
      spec.restarts = restarts;
      specs.push_back(spec);
      spec.rounding = Rounding::each;
      spec.norm_of = NormOf::rounded;
      spec.handed = Precision::bf16;
      if (precision != Precision::fp32) specs.push_back(spec);
      spec.rounding = Rounding::each_product_first;
      if (precision == Precision::bf16) specs.push_back(spec);
      spec.norm_of = NormOf::handed;
      specs.push_back(spec);
    }
  return specs;
}

TEST(Streamed, HasTheBitsOfTheWholeMatrix) {
  for (const MuonSpec& spec : gram_specs())
    for (const Case& size : kCases) {
      // Of the largest, one number of restarts is enough.
      if (std::min(size.rows, size.cols) > 512 && spec.restarts.size() != 1) continue;
      const auto u = gaussian(size.rows * size.cols, 5);
      for (const Bf16 bf16 : {Bf16::emulated, Bf16::real}) {
        if (bf16 == Bf16::real && (spec.precision != Precision::bf16 || !has_real_bf16())) continue;
        EXPECT_TRUE(same_bits(streamed(spec, bf16, size, u), whole(spec, bf16, size, u)))
            << size.rows << " x " << size.cols << ", precision " << static_cast<int>(spec.precision)
            << ", " << spec.restarts.size() << " restarts, bf16 " << name_of(bf16);
      }
    }
}

// Chunks of 8,192 elements begin anew, wherever pieces end: lanes that went on would be rounded
// elsewhere.
TEST(Streamed, SquaresAreSummedInTheChunksOfAWholeUpdate) {
  constexpr std::uint64_t kChunk = 8192;
  for (const std::uint64_t elems : {std::uint64_t{1}, kChunk, std::uint64_t{400003}})
    for (const std::uint64_t piece : {std::uint64_t{7001}, kChunk, std::uint64_t{500000}}) {
      const auto u = gaussian(elems, 11);
      double whole = 0;
      for (std::uint64_t first = 0; first < elems; first += kChunk)
        whole += sum_of_squares(u.data() + first, std::min(kChunk, elems - first));
      SquareSum sum;
      for (std::uint64_t first = 0; first < elems; first += piece)
        sum.add(std::span(u).subspan(first).first(std::min(piece, elems - first)));
      EXPECT_EQ(sum.total(), whole) << elems << " in pieces of " << piece;
    }
}

TEST(Streamed, NeedsOnePassMoreForEachRestart) {
  const auto specs = gram_specs();
  for (const MuonSpec& spec : specs)
    EXPECT_EQ(StreamedMatrix::passes(spec), 3 + spec.restarts.size());
}

TEST(Streamed, ZerosStayZerosAndWhatIsNotFiniteIsToldOf) {
  const Case size{1100, 96, 512};
  const MuonSpec spec = gram_specs().front();
  const std::vector<float> zeros(size.rows * size.cols, 0.0f);
  std::uint32_t non_finite = 0;
  EXPECT_TRUE(same_bits(streamed(spec, Bf16::emulated, size, zeros, &non_finite), zeros));
  EXPECT_EQ(non_finite, 0u);
  auto bad = gaussian(size.rows * size.cols, 5);
  bad[77777] = std::numeric_limits<float>::infinity();
  EXPECT_TRUE(same_bits(streamed(spec, Bf16::emulated, size, bad, &non_finite), zeros));
  EXPECT_EQ(non_finite, 1u);
}

// Iterations that end in infinity.
TEST(Streamed, AFactorThatIsNotFiniteIsToldOfBeforeThereIsAResult) {
  const Case size{1100, 96, 512};
  MuonSpec spec = MuonSpec::keller();
  spec.form = Form::gram;
  spec.iterations.assign(8, {1e8f, 1e8f, 1e8f});
  std::vector<std::byte> scratch(StreamedMatrix::scratch_bytes(spec, size.panels()));
  std::uint32_t non_finite = 0;
  StreamedMatrix matrix(spec, Bf16::emulated, size.panels(), scratch, {&non_finite, 3});
  auto u = gaussian(size.panel * size.cols, 5);
  auto squared = u;
  matrix.add_squares(squared);
  libswap::Pool pool;
  pool.help_until(pool.begin(matrix.next({2, true, true, u})));
  EXPECT_EQ(non_finite, 3u);
}

TEST(Streamed, OnlyMatricesInGramFormThatAreNotSquareAre) {
  MuonSpec spec = MuonSpec::keller();
  EXPECT_FALSE(streams(spec, Block::matrix(200, 100)));
  spec.form = Form::gram;
  EXPECT_TRUE(streams(spec, Block::matrix(200, 100)));
  EXPECT_TRUE(streams(spec, Block::matrix(100, 200)));
  EXPECT_FALSE(streams(spec, Block::matrix(100, 100)));
  EXPECT_FALSE(streams(spec, {.cols = 100, .run = 200, .runs = 2, .stride = 400}));
  MuonSpec decays = spec, moments = spec;
  decays.decay = Decay::l2;
  moments.second_moment = SecondMoment::rows;
  EXPECT_FALSE(streams(decays, Block::matrix(200, 100)));
  EXPECT_FALSE(streams(moments, Block::matrix(200, 100)));
}

}  // namespace
}  // namespace ebb::libmuon
