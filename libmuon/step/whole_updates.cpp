#include "ebb/libmuon/step/whole_updates.h"

#include <algorithm>

#include "ebb/libmuon/spec/blocks.h"
#include "ebb/libmuon/step/newton_schulz_need.h"

namespace ebb::libmuon {

using libswap::Buffer;
using libswap::Event;

namespace {

constexpr std::uint64_t kBothFlags = 2 * sizeof(std::uint32_t);

}  // namespace

WholeUpdates::Need WholeUpdates::need(const ModelSpec& model, const StatePlan& plan,
                                      const Accelerator* accelerator) {
  if (plan.placement() == Placement::shard) return {};
  const auto matrices = std::span(plan.items()).first(plan.order().updates());
  return {.updates = plan.order().room() * sizeof(float),
          .newton_schulz = newton_schulz_need(model, matrices, accelerator),
          .flags = kBothFlags};
}

Result<std::unique_ptr<WholeUpdates>> WholeUpdates::make(const With& with, const Need& need) {
  std::unique_ptr<WholeUpdates> updates(new WholeUpdates(with));
  libswap::Device* const device = with.kernels.device();
  EBB_TRY_ASSIGN(updates->room_, libswap::allocate(device, need.updates));
  EBB_TRY_ASSIGN(updates->scratch_, libswap::allocate(device, need.newton_schulz));
  EBB_TRY_ASSIGN(updates->flags_, libswap::allocate(device, need.flags));
  std::array<std::byte, kBothFlags> none{};
  with.pool.help_until(
      libswap::copy(libswap::buffer_of(std::span<std::byte>(none)), updates->flags_.buffer(), {}));
  return updates;
}

WholeUpdates::~WholeUpdates() {
  for (const Event& orthogonal : orthogonal_) with_.pool.help_until(orthogonal);
}

Buffer WholeUpdates::room_of(std::uint32_t number) const {
  return room_.buffer()
      .as(DType::f32)
      .sub(with_.plan.order().update(number), item(number).update_elems());
}

Buffer WholeUpdates::flag_of(std::uint32_t number) const {
  return flags_.buffer().as(DType::u32).sub(number % 2, 1);
}

bool WholeUpdates::untouched(std::uint32_t number) const {
  return std::ranges::all_of(item(number).parts,
                             [&](const ItemPart& part) { return absent_->untouched(part.param); });
}

std::vector<FlatRange> WholeUpdates::portions(const Visited& visit) {
  const auto& [kind, number, first, count, part] = visit.entry;
  if (!item(number).streaming) return MatrixUpdates::portions(visit);
  if (visit.scheduled.action == Action::prepare && first == 0) begin_streaming(number);
  return streamed_->turns(visit.scheduled, {first, count});
}

void WholeUpdates::begin_streaming(std::uint32_t number) {
  streamed_.emplace(
      StreamedUpdate::Of{with_.model,
                         item(number),
                         with_.bf16,
                         room_of(number),
                         scratch_.buffer(),
                         {reinterpret_cast<std::uint32_t*>(flag_of(number).bytes().data()), 1}},
      with_.pool);
}

std::vector<MatrixUpdates::Piece> WholeUpdates::update(const Visited& visit,
                                                       const StatePlan::Span& span,
                                                       const FlatRange& portion) {
  if (!item(visit.entry.item).streaming) return result(visit, span);
  streamed_->settle(visit.scheduled, portion);
  return streamed(visit.scheduled, portion);
}

std::vector<MatrixUpdates::Piece> WholeUpdates::result(const Visited& visit,
                                                       const StatePlan::Span& span) {
  const TileEntry& entry = visit.entry;
  const FlatRange elems = {entry.first + span.tile_first, span.range.count};
  if (item(entry.item).streaming) return streamed(visit.scheduled, elems);
  return {{span.range, room_of(entry.item).sub(elems.first, elems.count)}};
}

// An item that is streamed is one matrix of one parameter.
std::vector<MatrixUpdates::Piece> WholeUpdates::streamed(const Visit& visit,
                                                         const FlatRange& elems) const {
  const std::uint64_t matrix = item(visit.item).parts.front().range.first;
  std::vector<Piece> all;
  for (const auto& [part, update] : streamed_->pieces(visit, elems))
    all.push_back({{matrix + part.first, part.count}, update});
  return all;
}

void WholeUpdates::prepared(const Visited& visit, const FlatRange& portion, const Event& made) {
  const std::uint32_t number = visit.entry.item;
  if (item(number).streaming) {
    with_.pool.help_until(made);
    streamed_->made(visit.scheduled, portion);
    return;
  }
  if (portion.first + portion.count < item(number).elems) return;
  for (const Batch& batch : touched_batches(number))
    orthogonal_[number % 2] =
        with_.kernels.orthogonalize(batch.matrices, scratch_.buffer(), {&made, 1});
}

Buffer WholeUpdates::decay(const Visited& visit, const StatePlan::Span& span) {
  return room_of(visit.entry.item).sub(visit.entry.first + span.tile_first, span.range.count);
}

std::vector<WholeUpdates::Batch> WholeUpdates::touched_batches(std::uint32_t number) const {
  Item touched = item(number);
  std::erase_if(touched.parts, [&](const auto& part) { return absent_->untouched(part.param); });
  std::vector<Batch> all;
  std::uint32_t first = 1;  // matrix
  for (const ItemBatch& batch : batches_of(with_.model, touched)) {
    const Buffer u = room_of(number).sub(batch.item_first, batch.count * batch.matrix.span());
    all.push_back({batch,
                   {&muon_spec(with_.model, batch.param), batch.matrix, batch.count, with_.bf16, u,
                    flag_of(number), first}});
    first += static_cast<std::uint32_t>(batch.count);
  }
  return all;
}

// Of one item, though the tile may hold those of others.
Event WholeUpdates::move_moments(const Visited& visit) {
  const std::uint32_t number = visit.scheduled.item;
  std::vector<NormaliseRange> ranges;
  for (const auto& [batch, matrices] : touched_batches(number))
    if (const auto own = with_.plan.moments_of(with_.model, visit.scheduled, batch); own.count > 0)
      ranges.push_back({matrices, visit.columns[0].sub(own.first, own.count)});
  Event& orthogonal = orthogonal_[number % 2];
  visit.lift.also_behind(orthogonal);
  return orthogonal = with_.kernels.normalise(ranges, visit.lift.ready());
}

// Before the first of an item's weights moves, or before each of its tiles where O comes with it.
// Of what is untouched there is none: a visit that has no tile is made all the same.
Result<> WholeUpdates::check(const Visit& visit) {
  const bool applies = visit.action == Action::finish || visit.action == Action::emit_update;
  if (!applies || untouched(visit.item)) return {};
  const TileEntry& entry = with_.plan.entry(visit);
  const bool streamed = static_cast<bool>(item(visit.item).streaming);
  if (entry.first != 0 && !streamed) return {};
  std::uint32_t number = 0;
  const Buffer here = libswap::buffer_of(std::as_writable_bytes(std::span(&number, 1)));
  if (streamed)
    streamed_->settle(visit, {entry.first, entry.count});
  else
    with_.pool.help_until(orthogonal_[visit.item % 2]);
  with_.pool.help_until(libswap::copy(flag_of(visit.item), here.as(DType::u32), {}));
  if (number == 0) return {};
  return not_finite(owner_of_matrix(visit.item, number), with_.plan.rank());
}

const ParamSpec& WholeUpdates::owner_of_matrix(std::uint32_t number, std::uint32_t matrix) const {
  if (item(number).streaming) return with_.model.params[item(number).parts.front().param];
  std::uint64_t first = 0;
  for (const auto& [batch, matrices] : touched_batches(number))
    if (matrix >= matrices.number && matrix < matrices.number + batch.count)
      first = batch.item_first + (matrix - matrices.number) * batch.matrix.span();
  return with_.model.params[parts_of(item(number), {first, 1}).front().param];
}

}  // namespace ebb::libmuon
