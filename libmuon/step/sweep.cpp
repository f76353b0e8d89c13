#include "ebb/libmuon/step/sweep.h"

#include <algorithm>

#include "ebb/libmuon/kernels/kernels.h"
#include "ebb/libmuon/spec/blocks.h"

namespace ebb::libmuon {

using libswap::Buffer;
using libswap::Event;
using libswap::Stream;
using libswap::TileCache;
using libswap::TileVisit;

namespace {

std::vector<TileVisit> visits(const std::vector<std::uint64_t>& tiles, TileCache::Use use) {
  std::vector<TileVisit> visits;
  for (const std::uint64_t tile : tiles) visits.push_back({tile, use});
  return visits;
}

// Of this rank's batches of matrices, the one that needs the most.
template <typename Bytes>
std::uint64_t most_of(const ModelSpec& model, const StatePlan& plan, const Bytes& bytes) {
  std::uint64_t most = 0;
  for (const Item& item : plan.items())
    for (const ItemBatch& batch : batches_of(model, item))
      most = std::max<std::uint64_t>(most, bytes(muon_spec(model, batch.param), batch));
  return most;
}

libswap::Lift::Size lifted(const StatePlan& plan) { return {plan.tile_bytes(), plan.tile_elems()}; }

}  // namespace

Sweep::Workspace Sweep::workspace(const ModelSpec& model, const StatePlan& plan,
                                  const Accelerator* accelerator) {
  const std::uint64_t updates = plan.order().room() * sizeof(float);
  Workspace need;
  if (accelerator != nullptr) {
    need.newton_schulz = most_of(model, plan, [&](const auto& spec, const auto& batch) {
      return accelerator->workspace_bytes(spec, batch.matrix, batch.count);
    });
    need.device = updates + need.newton_schulz + libswap::Lift::device_bytes(lifted(plan));
    return need;
  }
  need.newton_schulz = most_of(model, plan, [](const auto& spec, const auto& batch) {
    return newton_schulz_scratch_bytes(spec, batch.matrix.rows(), batch.matrix.cols);
  });
  need.host = updates + need.newton_schulz;
  return need;
}

Sweep::Sweep(const Parts& parts, Ports ports) : parts_(parts), ports_(std::move(ports)) {}

Sweep::~Sweep() {
  for (const Event& orthogonal : orthogonal_) parts_.pool.help_until(orthogonal);
  wait_for_weights();
}

Result<std::unique_ptr<Sweep>> Sweep::open(const Parts& parts, libswap::IoQueue& io,
                                           libswap::Store& store, const libswap::Homes& homes,
                                           const Workspace& workspace, Ports ports) {
  std::unique_ptr<Sweep> sweep(new Sweep(parts, std::move(ports)));
  libswap::Device* const device = parts.kernels.device();
  EBB_TRY_ASSIGN(sweep->cache_, TileCache::open(io, store, parts.pool, homes, device, parts.trace));
  sweep->updates_ = std::make_unique<Stream>(
      *sweep->cache_, visits(parts.plan.schedule(), TileCache::Use::modify), Stream::Repeats::yes);
  EBB_TRY_ASSIGN(sweep->lift_, libswap::Lift::open(device, parts.pool, lifted(parts.plan)));
  EBB_TRY_ASSIGN(sweep->room_,
                 libswap::allocate(device, parts.plan.order().room() * sizeof(float)));
  EBB_TRY_ASSIGN(sweep->scratch_, libswap::allocate(device, workspace.newton_schulz));
  return sweep;
}

Result<> Sweep::create(std::uint64_t step,
                       const std::function<Result<>(std::uint64_t, std::span<std::byte>)>& fill) {
  Stream stream(*cache_, visits(parts_.plan.schedule(), TileCache::Use::create),
                Stream::Repeats::no);
  stream.begin(step);
  std::vector<std::byte> elsewhere;  // a tile of the host, for those that are at home on the device
  while (!stream.ended()) {
    EBB_TRY_ASSIGN(const Stream::Lease lease, stream.take());
    if (lease.buffer.device == nullptr) {
      EBB_TRY(fill(lease.tile, lease.buffer.bytes()));
      stream.give_back(lease, {});
      continue;
    }
    elsewhere.assign(lease.buffer.size(), std::byte{0});
    EBB_TRY(fill(lease.tile, elsewhere));
    const Event filled = libswap::copy(libswap::buffer_of(std::span(elsewhere)), lease.buffer, {});
    parts_.pool.help_until(filled);
    stream.give_back(lease, filled);
  }
  return cache_->settle();
}

// The tiles with weights, in the order of the schedule: chunks of weights are those of a step.
Result<> Sweep::look(
    const std::function<Result<>(std::size_t chunk, const Result<>& looked)>& out) {
  const auto& schedule = parts_.plan.schedule();
  std::vector<std::uint64_t> tiles;
  std::vector<std::size_t> ends;  // by chunk
  for (std::size_t chunk = 0, i = 0; chunk < parts_.chunks.count(); ++chunk) {
    for (; i < parts_.chunks.visits_end(chunk); ++i)
      if (parts_.plan.holds(parts_.plan.tiles()[schedule[i]], kMaster))
        tiles.push_back(schedule[i]);
    ends.push_back(tiles.size());
  }
  Stream stream(*cache_, visits(tiles, TileCache::Use::read), Stream::Repeats::no);
  stream.begin(0);
  for (std::size_t chunk = 0; chunk < ends.size(); ++chunk)
    EBB_TRY(out(chunk, look_to(stream, ends[chunk])));
  return {};
}

Result<> Sweep::look_to(Stream& stream, std::size_t end) {
  while (stream.position() < end) {
    EBB_TRY_ASSIGN(const Stream::Lease lease, stream.take());
    const TileEntry& entry = parts_.plan.tiles()[lease.tile];
    libswap::Lift::Visit lift = lift_->begin();
    const Buffer masters =
        lift.up(columns_of(entry, lease.buffer)[*parts_.plan.columns().find(entry.visit, kMaster)]);
    std::vector<Leaving> out;
    std::vector<OutRange> ranges;
    for (const StatePlan::Span& span : parts_.plan.spans(entry))
      if (const Buffer here = out_of(span, lift, out); !here.empty())
        ranges.push_back({masters.sub(span.tile_first, span.range.count), here});
    const Event done = parts_.kernels.hand_out(ranges, lift.ready());
    stream.give_back(lease, done);
    end_visit(lift, out, done, done);
  }
  wait_for_weights();
  return {};
}

void Sweep::begin_update(std::uint64_t step, float grad_scale, const AbsentGradients& absent) {
  grad_scale_ = grad_scale;
  absent_ = &absent;
  handed_ = 0;
  updates_->begin(step, untouched_tiles());
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
    if (items[entry.item] ||
        (entry.visit == Visit::local && std::ranges::all_of(parts_.plan.spans(entry), untouched)))
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
  const auto& hand_outs = parts_.plan.hand_outs();
  const std::size_t visits = parts_.chunks.visits_end(chunk);
  const std::size_t handed = parts_.chunks.hand_outs_end(chunk);
  while (updates_->position() < visits || handed_ < handed) {
    const bool visit = updates_->position() < visits;
    if (handed_ < handed && (!visit || hand_outs[handed_].before <= updates_->position()))
      hand_out(hand_outs[handed_++].part);
    else
      EBB_TRY(update_tile());
  }
  wait_for_weights();
  return updates_->ended() ? cache_->settle() : Result<>();
}

// Behind them all of the chunk's kernels have read its gradients, too.
void Sweep::wait_for_weights() {
  for (const Event& event : handed_out_) parts_.pool.help_until(event);
  handed_out_.clear();
}

void Sweep::go_on() { cache_->go_on(); }

Result<> Sweep::update_tile() {
  EBB_TRY_ASSIGN(const Stream::Lease lease, updates_->take());
  const TileEntry& entry = parts_.plan.tiles()[lease.tile];
  libswap::Lift::Visit lift = lift_->begin();
  const Buffer tile = lift.up(lease.buffer);
  std::vector<Leaving> out;
  const Event done = work({entry, columns_of(entry, tile), lift}, out);
  const Event down = lift.down(tile, lease.buffer, done);
  updates_->give_back(lease, down);
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
  const auto columns = parts_.plan.columns().of(entry.visit);
  const auto offsets = parts_.plan.columns().offsets(entry.visit, entry.count);
  std::vector<Buffer> all;
  for (std::size_t i = 0; i < columns.size(); ++i)
    all.push_back(
        tile.sub(offsets[i], entry.count * bytes_of(columns[i].dtype)).as(columns[i].dtype));
  return all;
}

Event Sweep::work(const Visited& visit, std::vector<Leaving>& out) {
  switch (visit.entry.visit) {
    case Visit::prepare:
      return prepare(visit);
    case Visit::finish:
      return finish(visit, out);
    case Visit::local:
      break;
  }
  return local(visit, out);
}

Buffer Sweep::update_of(std::uint32_t item) const {
  return room_.buffer()
      .as(DType::f32)
      .sub(parts_.plan.order().update(item), parts_.plan.items()[item].elems);
}

Event Sweep::prepare(const Visited& visit) {
  const TileEntry& entry = visit.entry;
  std::vector<PrepareRange> ranges;
  for (const StatePlan::Span& span : touched(entry)) {
    const std::uint64_t count = span.range.count;
    ranges.push_back({&muon_spec(parts_.model, span.param),
                      visit.lift.up(ports_.gradient({span.param, span.range})),
                      visit.columns[0].sub(span.tile_first, count),
                      update_of(entry.item).sub(entry.first + span.tile_first, count)});
  }
  const Event made = parts_.kernels.prepare(ranges, grad_scale_, visit.lift.ready());
  if (entry.first + entry.count == parts_.plan.items()[entry.item].elems)
    orthogonalize(entry.item, made);
  return made;
}

void Sweep::orthogonalize(std::uint32_t number, const Event& made) {
  Item item = parts_.plan.items()[number];
  std::erase_if(item.parts, [&](const auto& part) { return absent_->untouched(part.param); });
  for (const ItemBatch& batch : batches_of(parts_.model, item)) {
    const Buffer u = update_of(number).sub(batch.item_first, batch.count * batch.matrix.span());
    orthogonal_[number % 2] = parts_.kernels.orthogonalize(
        {&muon_spec(parts_.model, batch.param), batch.matrix, batch.count, parts_.bf16, u},
        scratch_.buffer(), {&made, 1});
  }
}

Buffer Sweep::out_of(const StatePlan::Span& span, libswap::Lift::Visit& lift,
                     std::vector<Leaving>& out) {
  const Buffer to = ports_.weight({span.param, span.range});
  const Buffer here = lift.room_for(to);
  if (!to.empty()) out.push_back({here, to});
  return here;
}

Event Sweep::finish(const Visited& visit, std::vector<Leaving>& out) {
  const TileEntry& entry = visit.entry;
  std::vector<FinishRange> ranges;
  for (const StatePlan::Span& span : touched(entry)) {
    const MuonSpec& spec = muon_spec(parts_.model, span.param);
    const Buffer to = out_of(span, visit.lift, out);
    for (const Scaled& part : scales_of(spec, parts_.model.params[span.param].shape, span.range)) {
      const std::uint64_t ahead = part.first - span.range.first;
      const std::uint64_t first = span.tile_first + ahead;
      ranges.push_back({&spec, part.scale,
                        update_of(entry.item).sub(entry.first + first, part.count),
                        visit.columns.empty() ? Buffer() : visit.columns[0].sub(first, part.count),
                        to.empty() ? to : to.sub(ahead, part.count)});
    }
  }
  visit.lift.also_behind(orthogonal_[entry.item % 2]);
  return parts_.kernels.finish(ranges, visit.lift.ready());
}

// As finish(), of what has no tile.
void Sweep::hand_out(const TileEntry& part) {
  libswap::Lift::Visit lift = lift_->begin();
  std::vector<Leaving> out;
  const Event done = finish({part, {}, lift}, out);
  end_visit(lift, out, done, done);
}

Event Sweep::local(const Visited& visit, std::vector<Leaving>& out) {
  std::vector<AdamRange> ranges;
  for (const StatePlan::Span& span : touched(visit.entry)) {
    const auto state = [&](std::uint64_t number) {
      return visit.columns[number].sub(span.tile_first, span.range.count);
    };
    ranges.push_back({&adam_spec(parts_.model, span.param), ports_.steps_taken(span.param) + 1,
                      visit.lift.up(ports_.gradient({span.param, span.range})), state(0), state(1),
                      state(2), out_of(span, visit.lift, out)});
  }
  return parts_.kernels.adamw(ranges, grad_scale_, visit.lift.ready());
}

}  // namespace ebb::libmuon
