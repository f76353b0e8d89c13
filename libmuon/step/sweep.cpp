#include "ebb/libmuon/step/sweep.h"

#include <algorithm>
#include <utility>

#include "ebb/libmuon/step/memory.h"

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

}  // namespace

Sweep::Sweep(const Parts& parts, TileCache& cache)
    : parts_(parts),
      matrices_(parts.exchange.updates()),
      cache_(cache),
      updates_(cache, visits_of_a_step(parts.plan), Stream::Repeats::yes) {}

Sweep::~Sweep() {
  parts_.pool.help_until_idle();  // kernels of a work that was lost
  wait_for_chunk();
  whole_.reset();  // waits for its kernels, which use what lift_ owns
}

Result<std::unique_ptr<Sweep>> Sweep::open(const Parts& parts, TileCache& cache,
                                           const WholeUpdates::Need& need) {
  std::unique_ptr<Sweep> sweep(new Sweep(parts, cache));
  EBB_TRY_ASSIGN(sweep->lift_,
                 libswap::Lift::open(parts.kernels.device(), parts.pool, lifted(parts.plan)));
  if (sweep->matrices_ != nullptr) return sweep;
  EBB_TRY_ASSIGN(
      sweep->whole_,
      WholeUpdates::make({parts.model, parts.plan, parts.pool, parts.kernels, parts.bf16}, need));
  sweep->matrices_ = sweep->whole_.get();
  return sweep;
}

void Sweep::begin_update(std::uint64_t step, float grad_scale, const AbsentGradients& absent) {
  grad_scale_ = grad_scale;
  absent_ = &absent;
  if (whole_) whole_->begin(absent);
  updates_.begin(step, untouched_tiles());
}

// A matrix is made of all its tiles, so an item is visited whole or not at all.
std::vector<std::uint64_t> Sweep::untouched_tiles() const {
  if (!absent_->any_untouched()) return {};
  const auto untouched = [&](const auto& part) { return absent_->untouched(part.param); };
  std::vector<bool> items;
  for (const Item& item : parts_.plan.items())
    items.push_back(std::ranges::all_of(item.parts, untouched));
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
  EBB_TRY(end_chunk(make_visits(chunk)));
  return updates_.ended() ? cache_.settle() : Result<>();
}

Result<> Sweep::device_works() const {
  const libswap::Device* const device = parts_.kernels.device();
  return device != nullptr ? device->status() : Result<>();
}

// Behind them all of the chunk's kernels have read its gradients, too.
void Sweep::wait_for_chunk() {
  for (const Event& event : of_chunk_) parts_.pool.help_until(event);
  of_chunk_.clear();
}

Result<> Sweep::end_chunk(const Result<>& visits_made) {
  wait_for_chunk();
  return visits_made ? device_works() : visits_made;
}

void Sweep::go_on() { cache_.go_on(); }

Result<> Sweep::make_visits(std::size_t chunk) {
  while (updates_.position() < parts_.chunks.visits_end(chunk)) EBB_TRY(make_visit(chunk));
  return {};
}

Result<> Sweep::make_visit(std::size_t chunk) {
  if (const Result<> fine = matrices_->check(parts_.plan.schedule()[updates_.position()]); !fine) {
    non_finite_ = true;
    return fine;
  }
  EBB_TRY_ASSIGN(const Stream::Lease lease, updates_.take());
  const Visit& scheduled = parts_.plan.schedule()[lease.position];
  const TileEntry& entry = parts_.plan.entry(scheduled);
  libswap::Lift::Visit lift = lift_->begin();
  const Buffer tile = lift.up(lease.buffer);
  std::vector<Leaving> out;
  std::vector<Buffer> columns;
  if (scheduled.has_tile()) columns = columns_of(entry, tile);
  const Event done = work({chunk, scheduled, entry, touched(entry), std::move(columns), lift}, out);
  const Event down = scheduled.changes() ? lift.down(tile, lease.buffer, done) : done;
  updates_.give_back(lease, down);
  before_chunk_ends(end_visit(lift, out, done, down));
  return {};
}

Event Sweep::end_visit(libswap::Lift::Visit& lift, const std::vector<Leaving>& out,
                       const Event& done, const Event& tile) {
  Event last = tile;
  for (const Leaving& weights : out)
    if (weights.from.data != weights.to.data) last = lift.down(weights.from, weights.to, done);
  lift.end(last);
  return last;
}

void Sweep::before_chunk_ends(const Event& visit_ends) {
  if (!visit_ends.passed()) of_chunk_.push_back(visit_ends);
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
    case Action::recompute:
      return prepare(visit);
    case Action::normalise:
    case Action::read_moments:
    case Action::write_moments:
      return matrices_->move_moments(visit);
    case Action::finish:
    case Action::emit_update:
      return finish(visit, out);
    case Action::local:
      break;
  }
  return local(visit, out);
}

Event Sweep::decay(const Visited& visit) {
  std::vector<DecayRange> ranges;
  for (const StatePlan::Span& span : visit.touched) {
    const MuonSpec& spec = muon_spec(parts_.model, span.param);
    if (spec.decay != Decay::l2) continue;
    ranges.push_back({&spec, visit.columns[0].sub(span.tile_first, span.range.count),
                      matrices_->decay(visit, span)});
  }
  return parts_.kernels.decay(ranges, visit.lift.ready());
}

PrepareRange Sweep::prepare_range(const Visited& visit, const StatePlan::Span& span,
                                  const Buffer& gradient, const MatrixUpdates::Piece& piece) const {
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
                     .recompute = visit.scheduled.action == Action::recompute};
  if (const Buffer decay = matrices_->separate_decay(visit, span); !decay.empty())
    range.decay = decay.sub(ahead, count);
  if (columns.size() == 1) return range;
  range.scales = state(1);
  range.block = columns[1].block;
  return range;
}

Event Sweep::prepare(const Visited& visit) {
  std::vector<Buffer> gradients;
  for (const StatePlan::Span& span : visit.touched)
    gradients.push_back(
        visit.lift.up(parts_.exchange.gradient(visit.chunk, {span.param, span.range})));
  Event made;
  for (const FlatRange& portion : matrices_->portions(visit)) {
    std::vector<PrepareRange> ranges;
    for (std::size_t i = 0; i < gradients.size(); ++i)
      for (const auto& piece : matrices_->update(visit, visit.touched[i], portion))
        ranges.push_back(prepare_range(visit, visit.touched[i], gradients[i], piece));
    made = parts_.kernels.prepare(ranges, grad_scale_, visit.lift.ready());
    matrices_->prepared(visit, portion, made);
  }
  return made;
}

Buffer Sweep::out_of(std::size_t chunk, const StatePlan::Span& span, libswap::Lift::Visit& lift,
                     std::vector<Leaving>& out) const {
  const Buffer to = parts_.exchange.weight(chunk, {span.param, span.range});
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
  if (columns.in_halves()) master.high = visit.lift.up(parts_.exchange.bound(visit.chunk, range));
  if (parts_.plan.hands_out(visit.scheduled))
    master.out = out_of(visit.chunk, span, visit.lift, out);
  return master;
}

// It is worked on where it came to, and leaves from there: kernels write no weights.
Sweep::Master Sweep::bound_master_of(const Visited& visit, const Transit& range,
                                     std::vector<Leaving>& out) const {
  const Buffer w = visit.lift.up(parts_.exchange.bound(visit.chunk, range));
  if (const Buffer to = parts_.exchange.weight(visit.chunk, range); !to.empty())
    out.push_back({w, to});
  return {.w = w};
}

// Of tiles of masters, and of what has none. Those that leave behind the last of several visits do
// so whole.
Event Sweep::finish(const Visited& visit, std::vector<Leaving>& out) {
  const bool in_strips = parts_.plan.items()[visit.entry.item].streaming.wide();
  std::vector<FinishRange> ranges;
  std::vector<OutRange> whole;
  for (const StatePlan::Span& span : visit.touched) {
    const MuonSpec& spec = muon_spec(parts_.model, span.param);
    const Master master = master_of(visit, span, out);
    if (in_strips && !master.out.empty()) whole.push_back({master.w, master.out});
    const Buffer to = in_strips ? Buffer() : master.out;
    for (const auto& [range, update] : matrices_->result(visit, span))
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
  for (const StatePlan::Span& span : visit.touched) {
    const auto state = [&](std::uint64_t number) {
      return visit.columns[number].sub(span.tile_first, span.range.count);
    };
    const Buffer gradient =
        visit.lift.up(parts_.exchange.gradient(visit.chunk, {span.param, span.range}));
    const Master master = master_of(visit, span, out);
    ranges.push_back({&adam_spec(parts_.model, span.param), parts_.steps.taken(span.param) + 1,
                      gradient, master.w, state(first), state(first + 1), master.out, master.high});
  }
  return parts_.kernels.adamw(ranges, grad_scale_, visit.lift.ready());
}

}  // namespace ebb::libmuon
