#include "ebb/libmuon/step/staging.h"

namespace ebb::libmuon {

Staging::Staging(const StatePlan& plan, const Layout& trainer)
    : plan_(&plan), trainer_(&trainer), places_(trainer.tensors().size()) {}

Result<Staging> Staging::make(const StatePlan& plan, const Layout& trainer, std::uint64_t elems) {
  Staging staging(plan, trainer);
  EBB_TRY_ASSIGN(staging.memory_, libswap::AlignedBuffer::allocate(elems * sizeof(float)));
  return staging;
}

void Staging::begin(std::span<const Transit> transits) {
  std::uint64_t used = 0;
  for (const Transit& transit : transits) {
    places_[transit.param] = {};
    if (plan_->own_range(transit.param).count == 0 || plan_->in_place(transit.param, *trainer_))
      continue;
    places_[transit.param] = {transit.range, used};
    used += transit.range.count;
  }
  EBB_CHECK(used * sizeof(float) <= memory_.size());
}

std::span<float> Staging::at(const Transit& transit) {
  const Place& place = places_[transit.param];
  EBB_CHECK(transit.range.first >= place.range.first &&
            transit.range.first + transit.range.count <= place.range.first + place.range.count);
  auto* const floats = reinterpret_cast<float*>(memory_.bytes().data());
  return {floats + place.first + (transit.range.first - place.range.first), transit.range.count};
}

}  // namespace ebb::libmuon
