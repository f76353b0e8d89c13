// AdamLine: AdamW's ranges as every rank knows them, each with its place on a line that a rank's
// own AdamW elements lie on, one behind the other in the order of the model. A step visits a rank's
// line from its beginning to its end, beside that of its matrices, so that a place says when a
// range has been visited wherever it is kept. Pure arithmetic, the same on all ranks, and as long
// as the model has parameters: never ranks times parameters.
#pragma once

#include <cstdint>
#include <vector>

#include "ebb/libmuon/plan/layouts.h"
#include "ebb/libmuon/plan/rank_load.h"

namespace ebb::libmuon {

class AdamLine {
 public:
  struct Piece {
    Transit part;
    std::uint64_t end = 0;  // no rank that keeps some of it has its last element behind this
  };

  // Of what is no matrix of Muon's.
  explicit AdamLine(const Layouts& layouts);

  const std::vector<Piece>& pieces() const { return pieces_; }
  // No rank's line is longer.
  std::uint64_t length() const { return length_; }

 private:
  template <typename Take>
  static void for_ends(const ModelLayout::Part& part, RankLoad& used, const Take& take);
  void add(const ModelLayout::Part& part, std::uint32_t param, RankLoad& used);
  void add_slices(const ModelLayout& shards, std::uint32_t param, RankLoad& used);

  std::vector<Piece> pieces_;
  std::uint64_t length_ = 0;
};

}  // namespace ebb::libmuon
