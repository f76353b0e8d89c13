#include "ebb/libmuon/step/staging.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace ebb::libmuon {
namespace {

using Kind = Staging::Kind;
constexpr std::array kKinds = {Kind::gradients, Kind::weights};  // with places of AdamW's
constexpr std::size_t kRegions = 3;
constexpr std::uint64_t kStatesTogether = 3;  // of a parameter: an element of each has room

// Weights take the region of the gradients they are made of behind one chunk, and leave theirs to
// the gradients of the chunk after the next. Bound masters lie behind the gradients.
std::size_t region_of(Kind kind, std::size_t chunk) {
  return (2 * chunk + (kind == Kind::weights ? 1 : 0)) % kRegions;
}

const ModelLayout& trainer_of(const StatePlan& plan, Kind kind) {
  return kind == Kind::gradients ? plan.gradients() : plan.weights();
}

// Of matrices.
std::span<const Transit> transits_of(const StatePlan& plan, const Chunks& chunks, Kind kind,
                                     std::size_t chunk) {
  return matrices_in(plan,
                     kind == Kind::gradients ? chunks.gradients(chunk) : chunks.weights(chunk));
}

std::uint64_t chunk_bytes(const Staging::Needs& needs, Kind kind, std::size_t chunk) {
  if (kind == Kind::bound && !needs.plan.columns().bound_masters()) return 0;
  return staged_bytes(needs.plan, trainer_of(needs.plan, kind),
                      transits_of(needs.plan, needs.chunks, kind, chunk));
}

std::uint64_t lasting_bytes(const Staging::Needs& needs) {
  std::uint64_t bytes = 0;
  for (const Kind kind : kKinds)
    bytes += staged_bytes(needs.plan, trainer_of(needs.plan, kind), needs.lasting);
  return bytes;
}

// Two portions of a state, in bytes: each takes what a chunk stages, in fp32, or, of a large one,
// as much as makes what a portion costs besides its bytes small. So a rank that owns little has
// room for all of it, and does not make all ranks' portions as small.
std::uint64_t room_for_a_state(const Staging::Needs& needs) {
  const ModelLayout& weights = needs.plan.weights();
  std::uint64_t elems = staged_elems(needs.plan, weights, needs.lasting);
  for (std::size_t chunk = 0; chunk < needs.chunks.count(); ++chunk)
    elems =
        std::max(elems, staged_elems(needs.plan, weights,
                                     transits_of(needs.plan, needs.chunks, Kind::weights, chunk)));
  if (elems > 0) elems = std::max(elems, kStatesTogether);
  return 2 * std::min<std::uint64_t>(64 * formats::KiB, staged_bytes(DType::f32, elems));
}

// Bytes.
struct Sizes {
  std::uint64_t early = 0;
  std::array<std::uint64_t, kRegions> regions{};
};

Sizes sizes_of(const Staging::Needs& needs) {
  Sizes sizes;
  const std::size_t first_early = needs.chunks.count() - needs.early;
  const auto room = [&](Kind kind, std::size_t chunk, std::uint64_t bytes) {
    std::uint64_t& region = sizes.regions[region_of(kind, chunk)];
    region = std::max(region, bytes);
  };
  for (std::size_t chunk = 0; chunk < needs.chunks.count(); ++chunk) {
    std::uint64_t comes = chunk_bytes(needs, Kind::gradients, chunk);
    if (chunk >= first_early) sizes.early += std::exchange(comes, 0);
    room(Kind::gradients, chunk, comes + chunk_bytes(needs, Kind::bound, chunk));
    room(Kind::weights, chunk, chunk_bytes(needs, Kind::weights, chunk));
  }
  const std::uint64_t state = room_for_a_state(needs);
  const std::uint64_t all =
      std::accumulate(sizes.regions.begin(), sizes.regions.end(), std::uint64_t{0});
  if (std::max(all, lasting_bytes(needs)) < state) sizes.regions.back() += state - all;
  return sizes;
}

}  // namespace

std::uint64_t Staging::bytes(const Needs& needs) {
  const Sizes sizes = sizes_of(needs);
  return lasting_bytes(needs) + sizes.early +
         std::accumulate(sizes.regions.begin(), sizes.regions.end(), std::uint64_t{0});
}

Result<Staging> Staging::make(const Needs& needs, libswap::Device* device) {
  Staging staging(needs);
  std::uint64_t used = 0;
  for (const Kind kind : kKinds)
    used = staging.lay({trainer_of(needs.plan, kind)}, needs.lasting, used, staging.lasting(kind));
  used = staging.lasting_bytes_ = lasting_bytes(needs);
  for (std::size_t chunk = staging.first_early_; chunk < needs.chunks.count(); ++chunk)
    used = staging.lay({needs.plan.gradients()},
                       transits_of(needs.plan, needs.chunks, Kind::gradients, chunk), used,
                       staging.places(Kind::gradients, chunk));
  const Sizes sizes = sizes_of(needs);
  for (std::size_t region = 0; region < kRegions; ++region) {
    staging.borders_[region] = used;
    used += sizes.regions[region];
  }
  staging.borders_[kRegions] = used;
  EBB_TRY_ASSIGN(staging.memory_, libswap::allocate(device, used));
  return staging;
}

std::uint64_t Staging::lay(const As& as, std::span<const Transit> transits, std::uint64_t used,
                           Places& places) const {
  places.clear();
  for (const Transit& transit : transits) {
    const DType dtype = as.dtype.value_or(as.trainer.staged_dtype(transit.param));
    for (const FlatRange part : staged_parts(*plan_, as.trainer, transit)) {
      places.push_back({transit.param, part, used});
      used += staged_bytes(dtype, part.count);
    }
  }
  std::ranges::sort(places, {}, &Place::key);
  return used;
}

void Staging::begin(Kind kind, std::size_t chunk) {
  if (early(kind, chunk)) return;
  const std::size_t region = region_of(kind, chunk);
  std::uint64_t behind = borders_[region];
  if (kind == Kind::bound && !early(Kind::gradients, chunk))
    behind += chunk_bytes({*plan_, *chunks_, {}}, Kind::gradients, chunk);
  const std::uint64_t used =
      lay({trainer_of(*plan_, kind)}, transits_of(*plan_, *chunks_, kind, chunk), behind,
          places(kind, chunk));
  EBB_CHECK(used <= borders_[region + 1]);
}

std::uint64_t Staging::portion_bytes() const {
  const std::uint64_t half = portion_room().count / 2;
  return half - half % sizeof(float);
}

// The larger of what has room for chunks and what AdamW's ranges have at all times.
FlatRange Staging::portion_room() const {
  const FlatRange regions{borders_[0], borders_[kRegions] - borders_[0]};
  return regions.count >= lasting_bytes_ ? regions : FlatRange{0, lasting_bytes_};
}

void Staging::begin_portion(std::size_t portion, std::span<const Transit> transits,
                            std::size_t states) {
  const std::uint64_t first = portion_room().first + portion % 2 * portion_bytes();
  std::uint64_t used = first;
  auto& places = portions_[portion % 2];
  places.resize(states);
  for (Places& of_state : places)
    used = lay({plan_->weights(), DType::f32}, transits, used, of_state);
  EBB_CHECK(used <= first + portion_bytes());
}

libswap::Buffer Staging::in_portion(std::size_t portion, std::size_t state,
                                    const Transit& transit) {
  return elements_at(portions_[portion % 2][state], transit, DType::f32, memory_);
}

libswap::Buffer Staging::at(Kind kind, std::size_t chunk, const Transit& transit) {
  const Places& all = plan_->muon(transit.param) ? places(kind, chunk) : lasting(kind);
  return elements_at(all, transit, trainer_of(*plan_, kind).staged_dtype(transit.param), memory_);
}

}  // namespace ebb::libmuon
