#include "examples/gpt/reduce.h"

#include <algorithm>

namespace ebb::gpt {

FlatRange slice_of(std::uint64_t elems, Rank rank, std::uint32_t world) {
  const std::uint64_t part = formats::div_ceil(elems, world);
  const std::uint64_t first = std::min(elems, part * formats::index_of(rank));
  return {first, std::min(elems, first + part) - first};
}

GradientMean::GradientMean(libmuon::Communicator& ranks, std::uint64_t elems)
    : ranks_(ranks), elems_(elems), slice_(slice_of(elems, ranks.rank(), ranks.world())) {
  const Share mine = share_of(ranks.rank(), ranks.world());
  received_.resize((kBatch - mine.count) * slice_.count);
  mean_.resize(slice_.count);
}

std::uint64_t GradientMean::bytes(std::uint64_t elems, Rank rank, std::uint32_t world) {
  const std::uint64_t kept = kBatch - share_of(rank, world).count + 1;
  return kept * slice_of(elems, rank, world).count * sizeof(float);
}

Result<std::span<const float>> GradientMean::reduce(const std::vector<std::vector<float>>& mine,
                                                    FlatRange range) {
  const FlatRange own = formats::overlap(slice_, range);
  std::vector<libmuon::SendBuffer> sends;
  std::vector<libmuon::ReceiveBuffer> receives;
  std::vector<const float*> sequences;  // all twelve, ascending, `own` of each
  float* next = received_.data();
  for (std::uint32_t peer = 0; peer < ranks_.world(); ++peer) {
    const Rank rank{peer};
    const Share share = share_of(rank, ranks_.world());
    const FlatRange theirs = formats::overlap(slice_of(elems_, rank, ranks_.world()), range);
    const bool self = rank == ranks_.rank();
    for (std::uint32_t i = 0; i < share.count; ++i) {
      if (self) {
        sequences.push_back(mine[i].data() + own.first);
        continue;
      }
      const std::span<const float> gradient(mine[i]);
      sends.push_back({rank, libswap::buffer_of(gradient.subspan(theirs.first, theirs.count))});
      receives.push_back({rank, libswap::buffer_of(std::span(next, own.count))});
      sequences.push_back(next);
      next += own.count;
    }
  }
  EBB_TRY(ranks_.exchange(sends, receives));

  if (own.count == 0) return std::span<const float>();
  const std::span<float> mean = std::span(mean_).subspan(own.first - slice_.first, own.count);
  constexpr std::uint64_t kStretch = 4096;  // stays in the first-level cache over the twelve passes
  for (std::uint64_t first = 0; first < own.count; first += kStretch) {
    const std::uint64_t end = std::min(own.count, first + kStretch);
    std::copy(sequences[0] + first, sequences[0] + end, mean.data() + first);
    for (std::size_t s = 1; s < sequences.size(); ++s)
      for (std::uint64_t i = first; i < end; ++i) mean[i] += sequences[s][i];
    for (std::uint64_t i = first; i < end; ++i) mean[i] *= 1.0f / kBatch;
  }
  return std::span<const float>(mean);
}

}  // namespace ebb::gpt
