#include "ebb/libmuon/step/sweep.h"

#include <algorithm>

#include "ebb/libmuon/kernels/kernels.h"

namespace ebb::libmuon {

using libswap::Lane;
using libswap::Stream;
using libswap::TileCache;
using libswap::TileVisit;
using libswap::TraceSpan;

namespace {

// Elementwise work is cut for the pool at a fixed size: bits do not depend on the cut.
constexpr std::uint64_t kPoolElems = 64u << 10;

std::span<float> floats(std::span<std::byte> tile) {
  return {reinterpret_cast<float*>(tile.data()), tile.size() / sizeof(float)};
}

template <typename Job>
void in_ranges(libswap::Pool& pool, std::uint64_t count, const Job& job) {
  pool.run(formats::div_ceil(count, kPoolElems), [&](std::size_t i) {
    const std::uint64_t first = i * kPoolElems;
    job(first, std::min(kPoolElems, count - first));
  });
}

// Of this rank's matrices, the one that needs the most.
std::uint64_t most_of(const ModelSpec& model, const StatePlan& plan,
                      std::uint64_t (*bytes)(std::uint64_t rows, std::uint64_t cols)) {
  std::uint64_t most = 0;
  for (std::uint32_t param = 0; param < model.params.size(); ++param) {
    if (!plan.muon(param) || plan.own_range(param).count == 0) continue;
    const Shape& shape = model.params[param].shape;
    most = std::max(most, bytes(shape[0], shape[1]));
  }
  return most;
}

std::uint64_t scratch_bytes(const ModelSpec& model, const StatePlan& plan) {
  return most_of(model, plan, newton_schulz_scratch_bytes);
}

std::vector<TileVisit> visits(const std::vector<std::uint64_t>& tiles, TileCache::Use use) {
  std::vector<TileVisit> visits;
  for (const std::uint64_t tile : tiles) visits.push_back({tile, use});
  return visits;
}

}  // namespace

std::uint64_t Sweep::workspace_bytes(const ModelSpec& model, const StatePlan& plan,
                                     std::uint32_t threads) {
  return plan.order().room() * sizeof(float) + scratch_bytes(model, plan) +
         std::max(threads, 1u) * most_of(model, plan, newton_schulz_packing_bytes);
}

Sweep::Sweep(const Parts& parts, Ports ports) : parts_(parts), ports_(std::move(ports)) {}

Sweep::~Sweep() {
  for (const libswap::Event& orthogonal : orthogonal_) wait(orthogonal);
}

Result<std::unique_ptr<Sweep>> Sweep::open(const Parts& parts, const libswap::TileBudget& budget,
                                           Ports ports) {
  std::unique_ptr<Sweep> sweep(new Sweep(parts, std::move(ports)));
  const auto& schedule = parts.plan.schedule();
  EBB_TRY_ASSIGN(sweep->cache_,
                 TileCache::open(parts.io, parts.store, parts.pool, budget, schedule, parts.trace));
  sweep->updates_ = std::make_unique<Stream>(
      *sweep->cache_, visits(schedule, TileCache::Use::modify), Stream::Repeats::yes);
  EBB_TRY_ASSIGN(sweep->room_,
                 libswap::AlignedBuffer::allocate(parts.plan.order().room() * sizeof(float)));
  EBB_TRY_ASSIGN(sweep->scratch_,
                 libswap::AlignedBuffer::allocate(scratch_bytes(parts.model, parts.plan)));
  return sweep;
}

Result<> Sweep::create(std::uint64_t step,
                       const std::function<Result<>(std::uint64_t, std::span<std::byte>)>& fill) {
  Stream stream(*cache_, visits(parts_.plan.schedule(), TileCache::Use::create),
                Stream::Repeats::no);
  stream.begin(step);
  while (!stream.ended()) {
    EBB_TRY_ASSIGN(const Stream::Lease lease, stream.take());
    EBB_TRY(fill(lease.tile, lease.bytes));
    stream.give_back(lease, {});
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
      if (parts_.plan.tiles()[schedule[i]].kind != TileKind::momentum) tiles.push_back(schedule[i]);
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
    for (const StatePlan::Span& span : parts_.plan.spans(parts_.plan.tiles()[lease.tile]))
      hand_out(span, floats(lease.bytes).subspan(span.tile_first, span.range.count));
    stream.give_back(lease, {});
  }
  return {};
}

void Sweep::begin_update(std::uint64_t step, float grad_scale) {
  grad_scale_ = grad_scale;
  updates_->begin(step);
}

Result<> Sweep::update(std::size_t chunk) {
  while (updates_->position() < parts_.chunks.visits_end(chunk)) EBB_TRY(update_tile());
  return updates_->ended() ? cache_->settle() : Result<>();
}

void Sweep::go_on() { cache_->go_on(); }

Result<> Sweep::update_tile() {
  EBB_TRY_ASSIGN(const Stream::Lease lease, updates_->take());
  const TileEntry& entry = parts_.plan.tiles()[lease.tile];
  if (entry.kind == TileKind::momentum)
    momentum(entry, floats(lease.bytes));
  else if (entry.kind == TileKind::master)
    master(entry, floats(lease.bytes));
  else
    adam(entry, floats(lease.bytes));
  updates_->give_back(lease, {});
  return {};
}

void Sweep::wait(const libswap::Event& event) {
  if (event.passed()) return;
  const TraceSpan trace(parts_.trace, parts_.plan.rank(), Lane::compute, "Newton-Schulz");
  parts_.pool.help_until([&] { return event.passed(); });
}

template <typename Spec>
const Spec& Sweep::spec_of(std::uint32_t param) const {
  return std::get<Spec>(parts_.model.groups[parts_.model.params[param].group]);
}

std::span<float> Sweep::update_of(std::uint32_t item) {
  return floats(room_.bytes())
      .subspan(parts_.plan.order().update(item), parts_.plan.items()[item].elems);
}

void Sweep::momentum(const TileEntry& entry, std::span<float> tile) {
  {
    const TraceSpan trace(parts_.trace, parts_.plan.rank(), Lane::compute, "momentum");
    for (const StatePlan::Span& span : parts_.plan.spans(entry)) {
      const auto& spec = spec_of<MuonSpec>(span.param);
      const auto g = ports_.gradient({span.param, span.range});
      const auto m = tile.subspan(span.tile_first);
      const auto u = update_of(entry.item).subspan(entry.first + span.tile_first);
      in_ranges(parts_.pool, span.range.count, [&](std::uint64_t first, std::uint64_t count) {
        momentum_range(spec, grad_scale_, g.subspan(first, count), m.subspan(first, count),
                       u.subspan(first, count));
      });
    }
  }
  if (entry.first + entry.count == parts_.plan.items()[entry.item].elems) orthogonalize(entry.item);
}

// The pool does chains one after the other: they share the scratch.
void Sweep::orthogonalize(std::uint32_t item) {
  for (const ItemPart& part : parts_.plan.items()[item].parts) {
    const Shape& shape = parts_.model.params[part.param].shape;
    const auto u = update_of(item).subspan(part.item_first, part.range.count);
    orthogonal_[item % 2] = parts_.pool.begin(
        newton_schulz(spec_of<MuonSpec>(part.param), shape[0], shape[1], u, scratch_.bytes()));
  }
}

void Sweep::master(const TileEntry& entry, std::span<float> tile) {
  wait(orthogonal_[entry.item % 2]);
  const TraceSpan trace(parts_.trace, parts_.plan.rank(), Lane::compute, "apply");
  for (const StatePlan::Span& span : parts_.plan.spans(entry)) {
    const auto& spec = spec_of<MuonSpec>(span.param);
    const Shape& shape = parts_.model.params[span.param].shape;
    const std::span<const float> o = update_of(entry.item).subspan(entry.first + span.tile_first);
    const auto w = tile.subspan(span.tile_first, span.range.count);
    in_ranges(parts_.pool, span.range.count, [&](std::uint64_t first, std::uint64_t count) {
      apply_range(spec, shape[0], shape[1], o.subspan(first, count), w.subspan(first, count));
    });
    hand_out(span, w);
  }
}

void Sweep::adam(const TileEntry& entry, std::span<float> tile) {
  const TraceSpan trace(parts_.trace, parts_.plan.rank(), Lane::compute, "AdamW");
  const std::uint64_t stride = StatePlan::adam_stride(entry) / sizeof(float);
  for (const StatePlan::Span& span : parts_.plan.spans(entry)) {
    const auto& spec = spec_of<AdamSpec>(span.param);
    const std::uint64_t taken = ports_.steps_taken(span.param);
    const auto g = ports_.gradient({span.param, span.range});
    const auto w = tile.subspan(span.tile_first, span.range.count);
    const auto m = tile.subspan(stride + span.tile_first);
    const auto v = tile.subspan(2 * stride + span.tile_first);
    in_ranges(parts_.pool, span.range.count, [&](std::uint64_t first, std::uint64_t count) {
      adamw_range(spec, taken + 1, grad_scale_, g.subspan(first, count), w.subspan(first, count),
                  m.subspan(first, count), v.subspan(first, count));
    });
    hand_out(span, w);
  }
}

void Sweep::hand_out(const StatePlan::Span& span, std::span<const float> new_weights) {
  const std::span<float> own = ports_.weight({span.param, span.range});
  if (!own.empty()) std::ranges::copy(new_weights, own.begin());
}

}  // namespace ebb::libmuon
