// Phase 2: what happens to each tile as the pager brings it. No communication here.
#include <algorithm>
#include <chrono>

#include "ebb/libmuon/step/engine_impl.h"
#include "ebb/libswap/sys/process.h"

namespace ebb::libmuon {

using libswap::Lane;
using libswap::Pager;
using libswap::TraceSpan;

namespace {

// Elementwise work is cut for the pool at a fixed size: bits do not depend on the cut.
constexpr std::uint64_t kPoolElems = 64u << 10;

std::span<float> floats(std::span<std::byte> tile) {
  return {reinterpret_cast<float*>(tile.data()), tile.size() / sizeof(float)};
}

template <typename Job>
void in_ranges(Pool& pool, std::uint64_t count, const Job& job) {
  pool.run(formats::div_ceil(count, kPoolElems), [&](std::size_t i) {
    const std::uint64_t first = i * kPoolElems;
    job(first, std::min(kPoolElems, count - first));
  });
}

}  // namespace

Result<> Engine::Impl::update_sweep(float grad_scale) {
  const auto begin = std::chrono::steady_clock::now();
  const double stalled = pager->stats().stall_read_s + pager->stats().stall_cut_s;
  const StatePlan& plan = parts.plan;
  EBB_TRY(pager->sweep(Pager::Mode::update, step + 1,
                       [&](std::uint64_t tile, std::span<std::byte> bytes) -> Result<> {
                         const Visit& visit = plan.visits()[tile];
                         if (visit.kind == VisitKind::momentum)
                           visit_momentum(visit, floats(bytes), grad_scale);
                         else if (visit.kind == VisitKind::master)
                           visit_master(visit, floats(bytes));
                         else
                           visit_adam(visit, floats(bytes), grad_scale);
                         return {};
                       }));
  const double now = pager->stats().stall_read_s + pager->stats().stall_cut_s;
  stats.compute_s += libswap::seconds_since(begin) - (now - stalled);
  return {};
}

// Reads every tile and hands out the weights it holds.
Result<> Engine::Impl::look_sweep() {
  const StatePlan& plan = parts.plan;
  return pager->sweep(Pager::Mode::look, step,
                      [&](std::uint64_t tile, std::span<std::byte> bytes) -> Result<> {
                        const Visit& visit = plan.visits()[tile];
                        if (visit.kind == VisitKind::momentum) return {};
                        for (const StatePlan::Span& span : plan.spans(visit))
                          hand_out(span, floats(bytes).subspan(span.visit_first, span.range.count));
                        return {};
                      });
}

void Engine::Impl::visit_momentum(const Visit& visit, std::span<float> tile, float grad_scale) {
  const Item& item = parts.plan.items()[visit.item];
  {
    const TraceSpan trace(config.trace, parts.plan.rank(), Lane::compute, "momentum");
    for (const StatePlan::Span& span : parts.plan.spans(visit)) {
      const auto& spec = std::get<MuonSpec>(config.model.groups[group_of(span.param)]);
      const std::uint64_t own_first = parts.plan.own_range(span.param).first;
      const auto g = own_gradient(span.param).subspan(span.range.first - own_first);
      const auto m = tile.subspan(span.visit_first);
      const auto out = std::span(u).subspan(visit.first + span.visit_first);
      in_ranges(pool, span.range.count, [&](std::uint64_t first, std::uint64_t count) {
        momentum_range(spec, grad_scale, g.subspan(first, count), m.subspan(first, count),
                       out.subspan(first, count));
      });
    }
  }
  if (visit.first + visit.count == item.elems) orthogonalize(item);
}

void Engine::Impl::orthogonalize(const Item& item) {
  const TraceSpan trace(config.trace, parts.plan.rank(), Lane::compute, "Newton-Schulz");
  for (const ItemPart& part : item.parts) {
    const Shape& shape = config.model.params[part.param].shape;
    newton_schulz[group_of(part.param)]->run(
        shape[0], shape[1], std::span<const float>(u).subspan(part.item_first, part.range.count),
        std::span(o).subspan(part.item_first, part.range.count));
  }
}

void Engine::Impl::visit_master(const Visit& visit, std::span<float> tile) {
  const TraceSpan trace(config.trace, parts.plan.rank(), Lane::compute, "apply");
  for (const StatePlan::Span& span : parts.plan.spans(visit)) {
    const auto& spec = std::get<MuonSpec>(config.model.groups[group_of(span.param)]);
    const Shape& shape = config.model.params[span.param].shape;
    const auto out = std::span<const float>(o).subspan(visit.first + span.visit_first);
    const auto w = tile.subspan(span.visit_first, span.range.count);
    in_ranges(pool, span.range.count, [&](std::uint64_t first, std::uint64_t count) {
      apply_range(spec, shape[0], shape[1], out.subspan(first, count), w.subspan(first, count));
    });
    hand_out(span, w);
  }
}

std::uint64_t Engine::Impl::steps_taken(std::uint32_t param) const {
  if (steps_ahead.empty()) return step;
  return static_cast<std::uint64_t>(static_cast<std::int64_t>(step) + steps_ahead[param]);
}

void Engine::Impl::visit_adam(const Visit& visit, std::span<float> tile, float grad_scale) {
  const TraceSpan trace(config.trace, parts.plan.rank(), Lane::compute, "AdamW");
  const std::uint64_t stride = StatePlan::adam_stride(visit) / sizeof(float);
  for (const StatePlan::Span& span : parts.plan.spans(visit)) {
    const auto& spec = std::get<AdamSpec>(config.model.groups[group_of(span.param)]);
    const std::uint64_t taken = steps_taken(span.param);
    const std::uint64_t own_first = parts.plan.own_range(span.param).first;
    const auto g = own_gradient(span.param).subspan(span.range.first - own_first);
    const auto w = tile.subspan(span.visit_first, span.range.count);
    const auto m = tile.subspan(stride + span.visit_first);
    const auto v = tile.subspan(2 * stride + span.visit_first);
    in_ranges(pool, span.range.count, [&](std::uint64_t first, std::uint64_t count) {
      adamw_range(spec, taken + 1, grad_scale, g.subspan(first, count), w.subspan(first, count),
                  m.subspan(first, count), v.subspan(first, count));
    });
    hand_out(span, w);
  }
}

void Engine::Impl::hand_out(const StatePlan::Span& span, std::span<const float> new_weights) {
  const std::span<float> own = own_weight(span.param);
  if (own.empty()) return;
  const std::uint64_t first = span.range.first - parts.plan.own_range(span.param).first;
  std::ranges::copy(new_weights, own.subspan(first).begin());
}

}  // namespace ebb::libmuon
