#include "ebb/libmuon/step/staging.h"

namespace ebb::libmuon {

Staging::Staging(const StatePlan& plan, const Layout& trainer)
    : plan_(&plan), trainer_(&trainer), places_(trainer.tensors().size()) {}

Result<Staging> Staging::make(const StatePlan& plan, const Layout& trainer,
                              std::span<const Transit> lasting, std::uint64_t chunk_elems) {
  Staging staging(plan, trainer);
  staging.lasting_ = staging.lay(lasting, 0);
  EBB_TRY_ASSIGN(staging.memory_, libswap::AlignedBuffer::allocate(
                                      (staging.lasting_ + chunk_elems) * sizeof(float)));
  return staging;
}

// Places behind the first `used` elements. Returns how many are used then.
std::uint64_t Staging::lay(std::span<const Transit> transits, std::uint64_t used) {
  for (const Transit& transit : transits) {
    const FlatRange part = staged_part(*plan_, *trainer_, transit);
    places_[transit.param] = {part, used};
    used += part.count;
  }
  return used;
}

void Staging::begin(std::span<const Transit> transits) {
  EBB_CHECK(lay(transits, lasting_) * sizeof(float) <= memory_.size());
}

std::span<float> Staging::at(const Transit& transit) {
  const Place& place = places_[transit.param];
  EBB_CHECK(transit.range.first >= place.range.first &&
            transit.range.first + transit.range.count <= place.range.first + place.range.count);
  auto* const floats = reinterpret_cast<float*>(memory_.bytes().data());
  return {floats + place.first + (transit.range.first - place.range.first), transit.range.count};
}

}  // namespace ebb::libmuon
