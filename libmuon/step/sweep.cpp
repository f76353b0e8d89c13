#include "ebb/libmuon/step/sweep.h"

#include <algorithm>
#include <utility>

#include "ebb/libmuon/spec/blocks.h"
#include "ebb/libmuon/step/newton_schulz_need.h"

namespace ebb::libmuon {

using libswap::Buffer;
using libswap::Event;
using libswap::Stream;
using libswap::TileCache;
using libswap::TileVisit;

namespace {

std::vector<TileVisit> visits_of_a_step(const StatePlan& plan) {
  std::vector<TileVisit> visits;
  for (const Visit& visit : plan.schedule())
    visits.push_back({visit.has_tile() ? visit.tile : libswap::kNoTile,
                      visit.changes() ? TileCache::Use::modify : TileCache::Use::read});
  return visits;
}

constexpr std::uint64_t kBothVerdicts = 2 * sizeof(std::uint32_t);

libswap::Lift::Size lifted(const StatePlan& plan) { return {plan.tile_bytes(), plan.tile_elems()}; }

}  // namespace

Sweep::Workspace Sweep::workspace(const ModelSpec& model, const StatePlan& plan,
                                  const Accelerator* accelerator) {
  const std::uint64_t updates = plan.order().room() * sizeof(float);
  const auto matrices = std::span(plan.items()).first(plan.order().updates());
  const std::uint64_t scratch = newton_schulz_need(model, matrices, accelerator);
  const std::uint64_t all = updates + scratch + kBothVerdicts;
  if (accelerator != nullptr)
    return {.device = all + libswap::Lift::device_bytes(lifted(plan)), .newton_schulz = scratch};
  return {.host = all, .newton_schulz = scratch};
}

Sweep::Sweep(const Parts& parts, TileCache& cache, Ports ports)
    : parts_(parts),
      ports_(std::move(ports)),
      cache_(cache),
      updates_(cache, visits_of_a_step(parts.plan), Stream::Repeats::yes) {}

Sweep::~Sweep() {
  parts_.pool.help_until_idle();  // kernels of a work that was lost
  for (const Event& orthogonal : orthogonal_) parts_.pool.help_until(orthogonal);
  wait_for_weights();
}

Result<std::unique_ptr<Sweep>> Sweep::open(const Parts& parts, TileCache& cache,
                                           const Workspace& workspace, Ports ports) {
  std::unique_ptr<Sweep> sweep(new Sweep(parts, cache, std::move(ports)));
  libswap::Device* const device = parts.kernels.device();
  EBB_TRY_ASSIGN(sweep->lift_, libswap::Lift::open(device, parts.pool, lifted(parts.plan)));
  EBB_TRY_ASSIGN(sweep->room_,
                 libswap::allocate(device, parts.plan.order().room() * sizeof(float)));
  EBB_TRY_ASSIGN(sweep->scratch_, libswap::allocate(device, workspace.newton_schulz));
  EBB_TRY_ASSIGN(sweep->verdicts_, libswap::allocate(device, kBothVerdicts));
  std::array<std::byte, kBothVerdicts> none{};
  parts.pool.help_until(
      libswap::copy(libswap::buffer_of(std::span<std::byte>(none)), sweep->verdicts_.buffer(), {}));
  return sweep;
}

void Sweep::begin_update(std::uint64_t step, float grad_scale, const AbsentGradients& absent) {
  grad_scale_ = grad_scale;
  absent_ = &absent;
  updates_.begin(step, untouched_tiles());
}

bool Sweep::untouched(const Item& item) const {
  return std::ranges::all_of(item.parts,
                             [&](const ItemPart& part) { return absent_->untouched(part.param); });
}

// A matrix is made of all its tiles, so an item is visited whole or not at all.
std::vector<std::uint64_t> Sweep::untouched_tiles() const {
  if (!absent_->any_untouched()) return {};
  const auto untouched = [&](const auto& part) { return absent_->untouched(part.param); };
  std::vector<bool> items;
  for (const Item& item : parts_.plan.items()) items.push_back(this->untouched(item));
  std::vector<std::uint64_t> tiles;
  for (std::uint64_t i = 0; i < parts_.plan.tiles().size(); ++i) {
    const TileEntry& entry = parts_.plan.tiles()[i];
    const bool apart = entry.kind == TileKind::adam || entry.kind == TileKind::moments;
    if (items[entry.item] || (apart && std::ranges::all_of(parts_.plan.spans(entry), untouched)))
      tiles.push_back(i);
  }
  return tiles;
}

std::vector<StatePlan::Span> Sweep::touched(const TileEntry& entry) const {
  std::vector<StatePlan::Span> spans = parts_.plan.spans(entry);
  std::erase_if(spans, [&](const auto& span) { return absent_->untouched(span.param); });
  return spans;
}

Result<> Sweep::update(std::size_t chunk) {
  while (updates_.position() < parts_.chunks.visits_end(chunk)) EBB_TRY(make_visit(chunk));
  wait_for_weights();
  EBB_TRY(device_works());
  return updates_.ended() ? cache_.settle() : Result<>();
}

Result<> Sweep::device_works() const {
  const libswap::Device* const device = parts_.kernels.device();
  return device != nullptr ? device->status() : Result<>();
}

// Behind them all of the chunk's kernels have read its gradients, too.
void Sweep::wait_for_weights() {
  for (const Event& event : handed_out_) parts_.pool.help_until(event);
  handed_out_.clear();
}

void Sweep::go_on() { cache_.go_on(); }

Result<> Sweep::make_visit(std::size_t chunk) {
  EBB_TRY(check_update(parts_.plan.schedule()[updates_.position()]));
  EBB_TRY_ASSIGN(const Stream::Lease lease, updates_.take());
  const Visit& scheduled = parts_.plan.schedule()[lease.position];
  const TileEntry& entry = parts_.plan.entry(scheduled);
  libswap::Lift::Visit lift = lift_->begin();
  const Buffer tile = lift.up(lease.buffer);
  std::vector<Leaving> out;
  std::vector<Buffer> columns;
  if (scheduled.has_tile()) columns = columns_of(entry, tile);
  const Event done = work({chunk, scheduled, entry, std::move(columns), lift}, out);
  const Event down = scheduled.changes() ? lift.down(tile, lease.buffer, done) : done;
  updates_.give_back(lease, down);
  end_visit(lift, out, done, down);
  return {};
}

void Sweep::end_visit(libswap::Lift::Visit& lift, const std::vector<Leaving>& out,
                      const Event& done, const Event& tile) {
  Event last = tile;
  for (const Leaving& weights : out)
    if (weights.from.data != weights.to.data) last = lift.down(weights.from, weights.to, done);
  lift.end(last);
  if (!last.passed()) handed_out_.push_back(last);
}

std::vector<Buffer> Sweep::columns_of(const TileEntry& entry, const Buffer& tile) const {
  std::vector<Buffer> all;
  for (const auto& [column, offset, elems] : parts_.plan.columns_in(entry))
    all.push_back(tile.sub(offset, elems * bytes_of(column.dtype)).as(column.dtype));
  return all;
}

Event Sweep::work(const Visited& visit, std::vector<Leaving>& out) {
  switch (visit.scheduled.action) {
    case Action::decay:
      return decay(visit);
    case Action::prepare:
    case Action::again:
      return prepare(visit);
    case Action::normalise:
      return normalise(visit);
    case Action::lend:
    case Action::take_back:
      return move_moments(visit);
    case Action::finish:
    case Action::hand_out:
      return finish(visit, out);
    case Action::local:
      break;
  }
  return local(visit, out);
}

Buffer Sweep::update_of(std::uint32_t item) const {
  return room_.buffer()
      .as(DType::f32)
      .sub(parts_.plan.order().update(item), parts_.plan.items()[item].update_elems());
}

const Streaming& Sweep::streaming_of(std::uint32_t item) const {
  return parts_.plan.items()[item].streaming;
}

std::vector<Sweep::UpdatePiece> Sweep::updates_of(const Visited& visit, const StatePlan::Span& span,
                                                  const Ports::Piece& piece) const {
  if (piece) return {{span.range, piece(visit.chunk, {span.param, span.range})}};
  const TileEntry& entry = visit.entry;
  const FlatRange elems = {entry.first + span.tile_first, span.range.count};
  if (streaming_of(entry.item)) return streamed_updates_of(visit.scheduled, elems);
  return {{span.range, update_of(entry.item).sub(elems.first, elems.count)}};
}

// An item that is streamed is one matrix of one parameter.
std::vector<Sweep::UpdatePiece> Sweep::streamed_updates_of(const Visit& visit,
                                                           const FlatRange& elems) const {
  const std::uint64_t matrix = parts_.plan.items()[visit.item].parts.front().range.first;
  std::vector<UpdatePiece> all;
  for (const auto& [part, update] : streamed_->pieces(visit, elems))
    all.push_back({{matrix + part.first, part.count}, update});
  return all;
}

void Sweep::begin_streaming(std::uint32_t item) {
  streamed_.emplace(
      StreamedUpdate::Of{parts_.model,
                         parts_.plan.items()[item],
                         parts_.bf16,
                         update_of(item),
                         scratch_.buffer(),
                         {reinterpret_cast<std::uint32_t*>(spoiled_by(item).bytes().data()), 1}},
      parts_.pool);
}

Buffer Sweep::decay_of(const Visited& visit, const StatePlan::Span& span) const {
  if (ports_.decay) return ports_.decay(visit.chunk, {span.param, span.range});
  const TileEntry& entry = visit.entry;
  return update_of(entry.item).sub(entry.first + span.tile_first, span.range.count);
}

Event Sweep::decay(const Visited& visit) {
  std::vector<DecayRange> ranges;
  for (const StatePlan::Span& span : touched(visit.entry)) {
    const MuonSpec& spec = muon_spec(parts_.model, span.param);
    if (spec.decay != Decay::l2) continue;
    ranges.push_back(
        {&spec, visit.columns[0].sub(span.tile_first, span.range.count), decay_of(visit, span)});
  }
  return parts_.kernels.decay(ranges, visit.lift.ready());
}

PrepareRange Sweep::prepare_range(const Visited& visit, const StatePlan::Span& span,
                                  const Buffer& gradient, const UpdatePiece& piece) const {
  const std::span<const Column> columns = parts_.plan.columns().of(visit.entry.kind);
  const std::uint64_t ahead = piece.range.first - span.range.first, count = piece.range.count;
  const auto state = [&](std::size_t number) {
    const Column& column = columns[number];
    const FlatRange own = StatePlan::elems_of(span, column);
    return visit.columns[number].sub(own.first + ahead / column.block,
                                     formats::div_ceil(count, column.block));
  };
  PrepareRange range{.spec = &muon_spec(parts_.model, span.param),
                     .g = gradient.empty() ? gradient : gradient.sub(ahead, count),
                     .m = state(0),
                     .u = piece.update,
                     .again = visit.scheduled.action == Action::again};
  if (ports_.decay && decays_apart(*range.spec))
    range.decay = decay_of(visit, span).sub(ahead, count);
  if (columns.size() == 1) return range;
  range.scales = state(1);
  range.block = columns[1].block;
  return range;
}

Event Sweep::prepare(const Visited& visit) {
  const TileEntry& entry = visit.entry;
  if (streaming_of(entry.item)) return prepare_streamed(visit);
  std::vector<PrepareRange> ranges;
  for (const StatePlan::Span& span : touched(entry)) {
    const Buffer gradient = visit.lift.up(ports_.gradient(visit.chunk, {span.param, span.range}));
    for (const UpdatePiece& piece : updates_of(visit, span, ports_.update))
      ranges.push_back(prepare_range(visit, span, gradient, piece));
  }
  const Event made = parts_.kernels.prepare(ranges, grad_scale_, visit.lift.ready());
  const bool whole = entry.first + entry.count == parts_.plan.items()[entry.item].elems;
  if (whole && !ports_.update) orthogonalize(entry.item, made);
  return made;
}

Event Sweep::prepare_streamed(const Visited& visit) {
  const TileEntry& entry = visit.entry;
  const bool again = visit.scheduled.action == Action::again;
  if (!again && entry.first == 0) begin_streaming(entry.item);
  const StatePlan::Span span = parts_.plan.spans(entry).front();
  const Buffer gradient = visit.lift.up(ports_.gradient(visit.chunk, {span.param, span.range}));
  for (const FlatRange& elems : streamed_->turns(visit.scheduled, {entry.first, entry.count})) {
    streamed_->settle(visit.scheduled, elems);
    std::vector<PrepareRange> ranges;
    for (const UpdatePiece& piece : streamed_updates_of(visit.scheduled, elems))
      ranges.push_back(prepare_range(visit, span, gradient, piece));
    parts_.pool.help_until(parts_.kernels.prepare(ranges, grad_scale_, visit.lift.ready()));
    streamed_->made(visit.scheduled, elems);
  }
  return {};
}

void Sweep::orthogonalize(std::uint32_t item, const Event& made) {
  for (const Batch& batch : touched_batches(item))
    orthogonal_[item % 2] =
        parts_.kernels.orthogonalize(batch.matrices, scratch_.buffer(), {&made, 1});
}

std::vector<Sweep::Batch> Sweep::touched_batches(std::uint32_t number) const {
  Item item = parts_.plan.items()[number];
  std::erase_if(item.parts, [&](const auto& part) { return absent_->untouched(part.param); });
  std::vector<Batch> all;
  std::uint32_t first = 1;  // matrix
  for (const ItemBatch& batch : batches_of(parts_.model, item)) {
    const Buffer u = update_of(number).sub(batch.item_first, batch.count * batch.matrix.span());
    all.push_back({batch,
                   {&muon_spec(parts_.model, batch.param), batch.matrix, batch.count, parts_.bf16,
                    u, spoiled_by(number), first}});
    first += static_cast<std::uint32_t>(batch.count);
  }
  return all;
}

Buffer Sweep::spoiled_by(std::uint32_t item) const {
  return verdicts_.buffer().as(DType::u32).sub(item % 2, 1);
}

// Of one item, though the tile may hold those of others.
Event Sweep::normalise(const Visited& visit) {
  const std::uint32_t item = visit.scheduled.item;
  std::vector<NormaliseRange> ranges;
  for (const auto& [batch, matrices] : touched_batches(item))
    if (const auto own = parts_.plan.moments_of(parts_.model, visit.scheduled, batch);
        own.count > 0)
      ranges.push_back({matrices, visit.columns[0].sub(own.first, own.count)});
  Event& orthogonal = orthogonal_[item % 2];
  visit.lift.also_behind(orthogonal);
  return orthogonal = parts_.kernels.normalise(ranges, visit.lift.ready());
}

// To who computes a chunk's matrices, and back.
Event Sweep::move_moments(const Visited& visit) {
  const bool lent = visit.scheduled.action == Action::lend;
  for (const Event& event : visit.lift.ready()) parts_.pool.help_until(event);
  for (const StatePlan::Span& span : touched(visit.entry)) {
    const Buffer there = ports_.moments(visit.chunk, {span.param, span.range});
    if (there.empty()) continue;
    const Buffer here = visit.columns[0].sub(span.tile_first, span.range.count);
    parts_.pool.help_until(lent ? libswap::copy(here, there, {}) : libswap::copy(there, here, {}));
  }
  return {};
}

// Before the first of an item's weights moves, or before each of its tiles where O comes with it.
// What comes back to a shard was looked at before. Of what is untouched there is none: a visit that
// has no tile is made all the same.
Result<> Sweep::check_update(const Visit& visit) {
  const bool applies = visit.action == Action::finish || visit.action == Action::hand_out;
  if (!applies || ports_.result || untouched(parts_.plan.items()[visit.item])) return {};
  const TileEntry& entry = parts_.plan.entry(visit);
  const bool streamed = static_cast<bool>(streaming_of(visit.item));
  if (entry.first != 0 && !streamed) return {};
  std::uint32_t number = 0;
  const Buffer here = libswap::buffer_of(std::as_writable_bytes(std::span(&number, 1)));
  if (streamed)
    streamed_->settle(visit, {entry.first, entry.count});
  else
    parts_.pool.help_until(orthogonal_[visit.item % 2]);
  parts_.pool.help_until(libswap::copy(spoiled_by(visit.item), here.as(DType::u32), {}));
  if (number == 0) return {};
  spoiled_ = true;
  return not_finite(owner_of_matrix(visit.item, number), parts_.plan.rank());
}

const ParamSpec& Sweep::owner_of_matrix(std::uint32_t item, std::uint32_t number) const {
  if (streaming_of(item)) return parts_.model.params[parts_.plan.items()[item].parts.front().param];
  std::uint64_t first = 0;
  for (const auto& [batch, matrices] : touched_batches(item))
    if (number >= matrices.number && number < matrices.number + batch.count)
      first = batch.item_first + (number - matrices.number) * batch.matrix.span();
  const auto part = parts_of(parts_.plan.items()[item], {first, 1}).front();
  return parts_.model.params[part.param];
}

Buffer Sweep::out_of(std::size_t chunk, const StatePlan::Span& span, libswap::Lift::Visit& lift,
                     std::vector<Leaving>& out) const {
  const Buffer to = ports_.weight(chunk, {span.param, span.range});
  const Buffer here = lift.room_for(to);
  if (!to.empty()) out.push_back({here, to});
  return here;
}

Sweep::Master Sweep::master_of(const Visited& visit, const StatePlan::Span& span,
                               std::vector<Leaving>& out) const {
  const Columns& columns = parts_.plan.columns();
  const Transit range{span.param, span.range};
  if (columns.masters() == Masters::bound) return bound_master_of(visit, range, out);
  Master master;
  // They are the first column of their tiles.
  if (visit.scheduled.has_tile())
    master.w = visit.columns[0].sub(span.tile_first, span.range.count);
  if (columns.in_halves()) master.high = visit.lift.up(ports_.bound(visit.chunk, range));
  if (parts_.plan.hands_out(visit.scheduled))
    master.out = out_of(visit.chunk, span, visit.lift, out);
  return master;
}

// It is worked on where it came to, and leaves from there: kernels write no weights.
Sweep::Master Sweep::bound_master_of(const Visited& visit, const Transit& range,
                                     std::vector<Leaving>& out) const {
  const Buffer w = visit.lift.up(ports_.bound(visit.chunk, range));
  if (const Buffer to = ports_.weight(visit.chunk, range); !to.empty()) out.push_back({w, to});
  return {.w = w};
}

// Of tiles of masters, and of what has none. Those that leave behind the last of several visits do
// so whole.
Event Sweep::finish(const Visited& visit, std::vector<Leaving>& out) {
  const TileEntry& entry = visit.entry;
  const bool in_strips = streaming_of(entry.item).wide();
  std::vector<FinishRange> ranges;
  std::vector<OutRange> whole;
  for (const StatePlan::Span& span : touched(entry)) {
    const MuonSpec& spec = muon_spec(parts_.model, span.param);
    const Master master = master_of(visit, span, out);
    if (in_strips && !master.out.empty()) whole.push_back({master.w, master.out});
    const Buffer to = in_strips ? Buffer() : master.out;
    for (const auto& [range, update] : updates_of(visit, span, ports_.result))
      for (const Scaled& part : scales_of(spec, parts_.model.params[span.param].shape, range)) {
        const std::uint64_t ahead = part.first - span.range.first;
        const auto some = [&](const Buffer& all) {
          return all.empty() ? all : all.sub(ahead, part.count);
        };
        ranges.push_back({&spec, part.scale, update.sub(part.first - range.first, part.count),
                          some(master.w), some(to), some(master.high)});
      }
  }
  const Event applied = parts_.kernels.finish(ranges, visit.lift.ready());
  return whole.empty() ? applied : parts_.kernels.hand_out(whole, {&applied, 1});
}

Event Sweep::local(const Visited& visit, std::vector<Leaving>& out) {
  const std::uint64_t first = visit.columns.size() - 2;  // of the moments, behind kept masters
  std::vector<AdamRange> ranges;
  for (const StatePlan::Span& span : touched(visit.entry)) {
    const auto state = [&](std::uint64_t number) {
      return visit.columns[number].sub(span.tile_first, span.range.count);
    };
    const Buffer gradient = visit.lift.up(ports_.gradient(visit.chunk, {span.param, span.range}));
    const Master master = master_of(visit, span, out);
    ranges.push_back({&adam_spec(parts_.model, span.param), ports_.steps_taken(span.param) + 1,
                      gradient, master.w, state(first), state(first + 1), master.out, master.high});
  }
  return parts_.kernels.adamw(ranges, grad_scale_, visit.lift.ready());
}

}  // namespace ebb::libmuon
