// Newton-Schulz in Gram form of a matrix whose update is never whole: it comes panel by panel, cut
// across its long side, in several passes over all of them, and with the bits of newton_schulz():
//   1              squares of U
//   2 .. parts+1   X X^T of one part of the iterations (gram_parts), behind the last panel its Q
//   the last       O = Q ... Q X
// X is U, scaled, and moved by the Qs of the parts before.
//
// Panels are as many rows of a tall matrix, or columns of a wide one, as one likes, a multiple of
// kSumUnit but for the last.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "ebb/libmuon/kernels/kernels.h"

namespace ebb::libmuon {

// Whether a matrix can be computed so: not square, in Gram form, its rows one behind the other; U
// is made of gradient and momentum alone, and O is needed once.
bool streams(const MuonSpec& spec, const Block& matrix);

class StreamedMatrix {
 public:
  // The largest of a matrix' panels: so many rows of a tall one, or columns.
  struct Panels {
    std::uint64_t rows = 0, cols = 0;
    bool tall = false;  // the matrix
  };
  // All is borrowed; `scratch` is used by one at a time.
  StreamedMatrix(const MuonSpec& spec, Bf16 bf16, const Panels& panels,
                 std::span<std::byte> scratch, NonFinite non_finite);
  ~StreamedMatrix();
  static std::uint64_t scratch_bytes(const MuonSpec& spec, const Panels& panels);
  // How often U is made: the passes above.
  static std::uint32_t passes(const MuonSpec& spec);

  // The first pass, in the matrix' order, of any number of elements, which it changes.
  void add_squares(std::span<float> u);
  // The others: the panel, row-major, becomes O in the last of them, and nothing useful before.
  struct Panel {
    std::uint32_t pass = 2;
    bool first = false, last = false;  // of its pass
    std::span<float> u;
  };
  libswap::Chain next(const Panel& panel);

 private:
  class StreamedRun;
  const std::shared_ptr<StreamedRun> run_;
};

}  // namespace ebb::libmuon
