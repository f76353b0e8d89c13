#include "ebb/libmuon/step/edges.h"

#include <algorithm>

namespace ebb::libmuon {

std::uint64_t Edge::sent_bytes() const {
  std::uint64_t bytes = 0;
  for (std::size_t chunk = 0; chunk < chunks_->count(); ++chunk)
    bytes += exchange_.sent_bytes(transits(chunk));
  return bytes;
}

std::uint64_t Edge::bounce_bytes(const Exchange::Bounced& bounced) const {
  std::uint64_t most = 0;
  for (std::size_t chunk = 0; chunk < chunks_->count(); ++chunk)
    most = std::max(most, exchange_.bounce_bytes(transits(chunk), bounced));
  return most;
}

Edges::Edges(const StatePlan& plan, const Chunks& chunks, std::uint64_t most_room)
    : gradients(plan.gradients(), plan.state(), plan.rank(), chunks, &Chunks::gradients),
      updates(plan.updates(), plan.matrices(), plan.rank(), chunks, &Chunks::updates),
      results(plan.matrices(), plan.results(), plan.rank(), chunks, &Chunks::results),
      weights(plan.state(), plan.weights(), plan.rank(), chunks, &Chunks::weights),
      bound(plan.weights(), plan.state(), plan.rank(), chunks, &Chunks::bound),
      chunks_(&chunks) {
  if (plan.gradients().in_parts())
    sums.emplace(plan.gradients(), plan.state(), plan.rank(), most_room);
}

std::uint64_t Edges::gradient_bytes(const StatePlan& plan, std::size_t lasting) const {
  if (!sums) return gradients.sent_bytes();
  std::uint64_t bytes = 0;
  for (std::size_t chunk = 0; chunk < chunks_->count(); ++chunk) {
    const std::span<const Transit> parts = chunks_->gradients(chunk);
    bytes += sums->sent_bytes(parts);
    if (chunk + lasting < chunks_->count()) bytes += sums->sent_bytes(matrices_in(plan, parts));
  }
  return bytes;
}

std::uint64_t Edges::part_bytes(Side side) const {
  std::uint64_t most = 0;
  for (std::size_t chunk = 0; sums && chunk < chunks_->count(); ++chunk)
    most = std::max(most, sums->room_bytes(chunks_->gradients(chunk), side));
  return most;
}

std::uint64_t Edges::gradients_bounced(Side side) const {
  if (side == Side::host) return 0;
  if (!sums)
    return gradients.bounce_bytes({.sent = [](const Transit&) { return true; },
                                   .received = [](const Transit&) { return false; }});
  std::uint64_t most = 0;
  for (std::size_t chunk = 0; chunk < chunks_->count(); ++chunk)
    most = std::max(most, sums->sent_at_once(chunks_->gradients(chunk)));
  return most;
}

}  // namespace ebb::libmuon
