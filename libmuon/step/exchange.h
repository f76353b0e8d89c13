// Exchange: one ReshardPlan's moves of some tensors, run in bounded rounds over a Communicator.
// Gradients-in and weights-out of a step are both one of these. fp32 elements.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "ebb/formats/layout/reshard_plan.h"
#include "ebb/libmuon/comm/communicator.h"

namespace ebb::libmuon {

// The most bytes that any rank sends, or receives, when a tensor goes from one layout to another:
// what one round must hold. O(ranks).
std::uint64_t busiest_rank_bytes(const Layout& from, const Layout& to, std::uint32_t tensor);

class Exchange {
 public:
  // This rank's buffer of a tensor: the concatenated pieces of its layout.
  using Source = std::function<std::span<const float>(std::uint32_t tensor)>;
  using Target = std::function<std::span<float>(std::uint32_t tensor)>;
  // Whether a tensor takes part: Muon matrices and AdamW ranges have different layouts.
  using Selection = std::function<bool(std::uint32_t tensor)>;

  // Adds the moves of `plan` for the selected tensors. `in_place`: tensors whose own part needs no
  // copy, because this rank's source and target are one memory.
  void add(const formats::ReshardPlan& plan, const Selection& selected, const Selection& in_place);
  // `busiest_bytes[t]`: the most that any rank sends or receives of tensor t. Tensors share a round
  // as long as that stays below `round_bytes`: borders are the same on all ranks, which so run the
  // same number of rounds. REQUIRES: called once, after the last add(); no tensor is above.
  void plan_rounds(std::span<const std::uint64_t> busiest_bytes, std::uint64_t round_bytes);

  // Collective.
  Result<> run(Communicator& ranks, const Source& source, const Target& target);

  std::uint64_t sent_bytes() const { return sent_bytes_; }            // one run, this rank
  std::uint64_t workspace_bytes() const { return workspace_bytes_; }  // packing, largest round

 private:
  struct Round {
    std::vector<formats::Move> sends, receives;
  };
  static Result<> run_round(const Round& round, Communicator& ranks, const Source& source,
                            const Target& target);

  std::vector<formats::Move> sends_, receives_, keeps_;
  std::vector<Round> rounds_;
  std::uint64_t sent_bytes_ = 0;
  std::uint64_t workspace_bytes_ = 0;
};

}  // namespace ebb::libmuon
