#include "ebb/libmuon/step/staging.h"

#include <algorithm>

namespace ebb::libmuon {
namespace {

using Kind = Staging::Kind;
constexpr std::array kKinds = {Kind::gradients, Kind::weights};
constexpr std::size_t kRegions = 3;

// Weights take the region of the gradients they are made of behind one chunk, and leave theirs to
// the gradients of the chunk after the next.
std::size_t region_of(Kind kind, std::size_t chunk) {
  return (2 * chunk + (kind == Kind::weights ? 1 : 0)) % kRegions;
}

const Layout& trainer_of(const StatePlan& plan, Kind kind) {
  return kind == Kind::gradients ? plan.gradients() : plan.weights();
}

std::span<const Transit> transits_of(const Chunks& chunks, Kind kind, std::size_t chunk) {
  return kind == Kind::gradients ? chunks.gradients(chunk) : chunks.weights(chunk);
}

// Elements.
std::array<std::uint64_t, kRegions> regions_of(const StatePlan& plan, const Chunks& chunks) {
  std::array<std::uint64_t, kRegions> regions{};
  for (std::size_t chunk = 0; chunk < chunks.count(); ++chunk)
    for (const Kind kind : kKinds) {
      std::uint64_t& region = regions[region_of(kind, chunk)];
      region = std::max(
          region, staged_elems(plan, trainer_of(plan, kind), transits_of(chunks, kind, chunk)));
    }
  return regions;
}

}  // namespace

std::uint64_t Staging::bytes(const StatePlan& plan, const Chunks& chunks,
                             std::span<const Transit> lasting) {
  std::uint64_t elems = 0;
  for (const std::uint64_t region : regions_of(plan, chunks)) elems += region;
  for (const Kind kind : kKinds) elems += staged_elems(plan, trainer_of(plan, kind), lasting);
  return elems * sizeof(float);
}

Result<Staging> Staging::make(const StatePlan& plan, const Chunks& chunks,
                              std::span<const Transit> lasting) {
  Staging staging(plan, chunks);
  std::uint64_t used = 0;
  for (const Kind kind : kKinds)
    used = staging.lay(kind, lasting, used, staging.lasting_[static_cast<std::size_t>(kind)]);
  const auto regions = regions_of(plan, chunks);
  for (std::size_t region = 0; region < kRegions; ++region) {
    staging.borders_[region] = used;
    used += regions[region];
  }
  staging.borders_[kRegions] = used;
  EBB_TRY_ASSIGN(staging.memory_, libswap::AlignedBuffer::allocate(used * sizeof(float)));
  return staging;
}

std::uint64_t Staging::lay(Kind kind, std::span<const Transit> transits, std::uint64_t used,
                           Places& places) const {
  places.clear();
  for (const Transit& transit : transits) {
    const FlatRange part = staged_part(*plan_, trainer_of(*plan_, kind), transit);
    if (part.count == 0) continue;
    places.push_back({transit.param, part, used});
    used += part.count;
  }
  std::ranges::sort(places, {}, &Place::param);
  return used;
}

void Staging::begin(Kind kind, std::size_t chunk) {
  const std::size_t region = region_of(kind, chunk);
  const std::uint64_t used =
      lay(kind, transits_of(*chunks_, kind, chunk), borders_[region], places(kind, chunk));
  EBB_CHECK(used <= borders_[region + 1]);
}

std::span<float> Staging::at(Kind kind, std::size_t chunk, const Transit& transit) {
  const Places& all =
      plan_->muon(transit.param) ? places(kind, chunk) : lasting_[static_cast<std::size_t>(kind)];
  const auto place = std::ranges::lower_bound(all, transit.param, {}, &Place::param);
  EBB_CHECK(place != all.end() && place->param == transit.param &&
            transit.range.first >= place->range.first &&
            transit.range.first + transit.range.count <= place->range.first + place->range.count);
  auto* const floats = reinterpret_cast<float*>(memory_.bytes().data());
  return {floats + place->first + (transit.range.first - place->range.first), transit.range.count};
}

}  // namespace ebb::libmuon
