#include "ebb/libmuon/step/updates.h"

#include <algorithm>
#include <array>

#include "ebb/libmuon/step/newton_schulz_need.h"

namespace ebb::libmuon {

using libswap::Buffer;
using libswap::Event;

namespace {

constexpr std::uint64_t kAlign = 64;  // a matrix begins on a cache line
constexpr std::uint64_t kFlagBytes = sizeof(std::uint32_t);

bool narrow(DType dtype) { return dtype != DType::f32; }

// O lies where U lay.
bool in_place(const StatePlan& plan, std::uint32_t param) {
  return bytes_of(plan.updates().dtype(param)) == bytes_of(plan.results().dtype(param));
}

}  // namespace

Buffer Updates::Room::at(std::size_t turn, const Transit& transit) const {
  return elements_at(places[turn], transit, dtypes[transit.param], memory);
}

Updates::Room Updates::room_of(const Parts& parts, Lists lists, const ModelLayout& layout,
                               const ModelLayout& types,
                               const std::function<bool(std::uint32_t)>& wanted) {
  Room room;
  room.places.resize(parts.chunks.count());
  for (std::uint32_t param = 0; param < parts.plan.params(); ++param)
    room.dtypes.push_back(types.dtype(param));
  for (std::size_t turn = 0; turn < room.places.size(); ++turn) {
    std::uint64_t used = 0;
    for (const Transit& transit : (parts.chunks.*lists)(turn)) {
      if (wanted && !wanted(transit.param)) continue;
      for (const FlatRange here : layout.runs(transit, parts.plan.rank())) {
        room.places[turn].push_back({transit.param, here, used});
        used = formats::align_up(used + here.count * bytes_of(room.dtypes[transit.param]), kAlign);
      }
    }
    std::ranges::sort(room.places[turn], {}, &Place::key);
    room.bytes = std::max(room.bytes, used);
  }
  return room;
}

Item Updates::item_of(const Place& place) {
  return {.parts = {{place.param, place.range, 0}}, .elems = place.range.count};
}

Updates::Room Updates::moments_room(const Parts& parts, const Room& whole_u) {
  Room room;
  room.places.resize(whole_u.places.size());
  std::uint64_t half = 0;
  for (std::size_t turn = 0; turn < room.places.size(); ++turn) {
    std::uint64_t used = 0;
    for (const Place& whole : whole_u.places[turn]) {
      const FlatRange moments = moments_of(muon_spec(parts.model, whole.param),
                                           parts.model.params[whole.param].shape, whole.range);
      if (moments.count == 0) continue;
      room.places[turn].push_back({whole.param, moments, used});
      used = formats::align_up(used + moments.count * sizeof(float), kAlign);
    }
    half = std::max(half, used);
  }
  for (std::size_t turn = 0; turn < room.places.size(); ++turn)
    for (Place& place : room.places[turn]) place.first += turn / 2 % 2 * half;
  room.bytes = 2 * half;
  return room;
}

Updates::Rooms Updates::rooms_of(const Parts& parts) {
  const StatePlan& plan = parts.plan;
  Rooms rooms;
  rooms.part_u = room_of(parts, &Chunks::updates, plan.shards(), plan.updates());
  rooms.part_o = room_of(parts, &Chunks::results, plan.shards(), plan.results());
  rooms.whole_u = room_of(parts, &Chunks::updates, plan.matrices(), plan.updates());
  std::vector<Item> items;
  for (const auto& places : rooms.whole_u.places)
    for (const Place& place : places) {
      items.push_back(item_of(place));
      if (!narrow(plan.updates().dtype(place.param))) continue;
      for (const ItemBatch& batch : batches_of(parts.model, items.back()))
        rooms.wide = std::max(rooms.wide, batch.count * batch.matrix.span() * sizeof(float));
    }
  rooms.whole_o = room_of(parts, &Chunks::results, plan.matrices(), plan.results(),
                          [&](std::uint32_t param) { return !in_place(plan, param); });
  rooms.moments = moments_room(parts, rooms.whole_u);
  rooms.decays = room_of(
      parts, &Chunks::updates, plan.shards(), plan.shards(),
      [&](std::uint32_t param) { return decays_separately(muon_spec(parts.model, param)); });
  rooms.scratch = newton_schulz_need(parts.model, items, parts.accelerator);
  return rooms;
}

std::uint64_t Updates::Rooms::bytes() const {
  std::uint64_t bytes = wide + scratch + kFlagBytes;
  for (const Room* room : all(*this)) bytes += room->bytes;
  return bytes;
}

std::uint64_t Updates::bytes(const Parts& parts) {
  return parts.plan.placement() == Placement::owner ? 0 : rooms_of(parts).bytes();
}

Result<std::unique_ptr<Updates>> Updates::make(const Parts& parts, libswap::Pool& pool,
                                               std::unique_ptr<Kernels> kernels) {
  std::unique_ptr<Updates> updates(new Updates(parts, pool, std::move(kernels)));
  Rooms& rooms = updates->rooms_;
  libswap::Device* const device = updates->kernels_->device();
  for (Room* room : Rooms::all(rooms)) {
    EBB_TRY_ASSIGN(room->memory, libswap::allocate(device, room->bytes));
  }
  EBB_TRY_ASSIGN(updates->wide_, libswap::allocate(device, rooms.wide));
  EBB_TRY_ASSIGN(updates->scratch_, libswap::allocate(device, rooms.scratch));
  EBB_TRY_ASSIGN(updates->flag_, libswap::allocate(device, kFlagBytes));
  updates->forget();
  return updates;
}

Updates::~Updates() {
  pool_.help_until_idle();  // kernels of a work that was lost
  wait();
}

Buffer Updates::part(Kind kind, std::size_t turn, const Transit& transit) const {
  return (kind == Kind::update ? rooms_.part_u : rooms_.part_o).at(turn, transit);
}

Buffer Updates::whole(Kind kind, std::size_t turn, const Transit& transit) const {
  const StatePlan& plan = parts_.plan;
  if (kind == Kind::update) return rooms_.whole_u.at(turn, transit);
  if (in_place(plan, transit.param))
    return rooms_.whole_u.at(turn - ShardOrder::kTurnsBetween, transit)
        .as(plan.results().dtype(transit.param));
  return rooms_.whole_o.at(turn, transit);
}

std::vector<MatrixUpdates::Piece> Updates::update(const Visited& visit, const StatePlan::Span& span,
                                                  const FlatRange&) {
  return {{span.range, part(Kind::update, visit.chunk, {span.param, span.range})}};
}

std::vector<MatrixUpdates::Piece> Updates::result(const Visited& visit,
                                                  const StatePlan::Span& span) {
  return {{span.range, part(Kind::result, visit.chunk, {span.param, span.range})}};
}

Buffer Updates::decay(const Visited& visit, const StatePlan::Span& span) {
  const Buffer apart = separate_decay(visit, span);
  return apart.empty() ? part(Kind::update, visit.chunk, {span.param, span.range}) : apart;
}

Buffer Updates::separate_decay(const Visited& visit, const StatePlan::Span& span) {
  if (!decays_separately(muon_spec(parts_.model, span.param))) return {};
  return rooms_.decays.at(visit.chunk, {span.param, span.range});
}

// To who computes a chunk's matrices, and back.
Event Updates::move_moments(const Visited& visit) {
  const bool leaves = visit.scheduled.action == Action::read_moments;
  for (const Event& event : visit.lift.ready()) pool_.help_until(event);
  for (const StatePlan::Span& span : visit.touched) {
    const Buffer there = moments(visit.chunk, {span.param, span.range});
    if (there.empty()) continue;
    const Buffer here = visit.columns[0].sub(span.tile_first, span.range.count);
    pool_.help_until(leaves ? libswap::copy(here, there, {}) : libswap::copy(there, here, {}));
  }
  return {};
}

// Momentum has even turns, masters odd ones.
Buffer Updates::moments(std::size_t turn, const Transit& moments) const {
  const Places& places =
      rooms_.moments.places[turn % 2 == 0 ? turn : turn - ShardOrder::kTurnsBetween];
  if (place_of(places, moments) == nullptr) return {};
  return elements_at(places, moments, DType::f32, rooms_.moments.memory);
}

void Updates::orthogonalize(std::size_t turn, const AbsentGradients& absent, Bf16 bf16) {
  numbered_.clear();
  std::uint32_t number = 1;
  for (const Place& place : rooms_.whole_u.places[turn]) {
    if (absent.untouched(place.param)) continue;
    for (const ItemBatch& batch : batches_of(parts_.model, item_of(place))) {
      const std::uint64_t count = batch.count * batch.matrix.span();
      const Transit range{place.param, {place.range.first + batch.item_first, count}};
      const Buffer u = whole(Kind::update, turn, range);
      const Buffer o = whole(Kind::result, turn + ShardOrder::kTurnsBetween, range);
      MatrixBatch work{.spec = &muon_spec(parts_.model, place.param),
                       .matrix = batch.matrix,
                       .count = batch.count,
                       .bf16 = bf16,
                       .u = u,
                       .non_finite = flag_.buffer().as(DType::u32),
                       .number = number};
      number += static_cast<std::uint32_t>(batch.count);
      numbered_.emplace_back(number, place.param);
      if (narrow(u.dtype)) {
        work.in = u;
        work.u = wide_.buffer().as(DType::f32).sub(0, count);
      }
      const FlatRange moments = moments_of(*work.spec, parts_.model.params[place.param].shape,
                                           {batch.matrix.first, batch.count * batch.matrix.span()});
      const Buffer out = narrow(o.dtype) ? o : Buffer();
      if (moments.count == 0) work.out = out;
      made_ = kernels_->orthogonalize(work, scratch_.buffer(), {});
      if (moments.count == 0) continue;
      work.out = out;
      const NormaliseRange normalised{work, this->moments(turn, {place.param, moments})};
      made_ = kernels_->normalise({&normalised, 1}, {&made_, 1});
    }
  }
}

void Updates::forget() {
  wait();
  std::array<std::byte, kFlagBytes> none{};
  pool_.help_until(
      libswap::copy(libswap::buffer_of(std::span<std::byte>(none)), flag_.buffer(), {}));
}

void Updates::wait() { pool_.help_until(std::exchange(made_, {})); }

Result<> Updates::made() {
  wait();
  std::uint32_t number = 0;
  const Buffer here = libswap::buffer_of(std::as_writable_bytes(std::span(&number, 1)));
  pool_.help_until(libswap::copy(flag_.buffer(), here, {}));
  if (libswap::Device* const device = kernels_->device()) EBB_TRY(device->status());
  if (number == 0) return {};
  using Numbered = std::pair<std::uint32_t, std::uint32_t>;
  const auto whose = std::ranges::upper_bound(numbered_, number, {}, &Numbered::first);
  EBB_CHECK(whose != numbered_.end());
  return not_finite(parts_.model.params[whose->second], parts_.plan.rank());
}

}  // namespace ebb::libmuon
