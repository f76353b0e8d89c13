// Phases 0, 1 and 3 of a step: what all ranks do together.
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>

#include "ebb/libmuon/step/engine_impl.h"

namespace ebb::libmuon {

using formats::Code;
using formats::Error;
using formats::Layout;
using libswap::Lane;
using libswap::TraceSpan;

namespace {

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// The part of a trainer's buffer that is this rank's own range; empty when the buffer lacks it.
template <typename T>
std::span<T> own_part(std::span<T> held, const StatePlan& plan, const Layout& trainer,
                      std::uint32_t param) {
  if (!plan.in_place(param, trainer)) return {};
  const FlatRange own = plan.own_range(param);
  return held.subspan(own.first - trainer.held(param, plan.rank()).first, own.count);
}

// The sum is exact, so it may be cut anywhere.
ExactSum sum_of_squares(std::span<const std::span<const float>> gradients, Pool& pool) {
  constexpr std::size_t kChunk = 1u << 20;
  std::vector<std::span<const float>> chunks;
  for (std::span<const float> rest : gradients)
    for (; !rest.empty(); rest = rest.subspan(std::min(kChunk, rest.size())))
      chunks.push_back(rest.first(std::min(kChunk, rest.size())));
  std::vector<ExactSum> sums(chunks.size());
  pool.run(chunks.size(), [&](std::size_t chunk) { sums[chunk].add(chunks[chunk]); });
  ExactSum total;
  for (const ExactSum& sum : sums) total.merge(sum);
  return total;
}

}  // namespace

void Engine::Impl::reserve_buffers() {
  const StatePlan& plan = parts.plan;
  const std::size_t params = config.model.params.size();
  own_gradients.resize(params);
  own_weights.resize(params);
  for (std::uint32_t i = 0; i < params; ++i) {
    const std::uint64_t own = plan.own_range(i).count;
    if (!plan.in_place(i, plan.gradients())) own_gradients[i].resize(own);
    if (!plan.in_place(i, plan.weights())) own_weights[i].resize(own);
  }
  u.resize(plan.largest_item());
  o.resize(plan.largest_item());
}

std::span<const float> Engine::Impl::own_gradient(std::uint32_t param) const {
  const StatePlan& plan = parts.plan;
  if (!own_gradients[param].empty()) return own_gradients[param];
  return own_part(gradients[param], plan, plan.gradients(), param);
}

std::span<float> Engine::Impl::own_weight(std::uint32_t param) {
  const StatePlan& plan = parts.plan;
  if (!own_weights[param].empty()) return own_weights[param];
  if (!bound[param]) return {};
  return own_part(weights[param], plan, plan.weights(), param);
}

Result<> Engine::Impl::agree_all(const Result<>& mine, std::string_view doing) {
  return libswap::agree_all(ranks, mine, doing);
}

Result<> Engine::Impl::check_gradients() const {
  if (broken) return *broken;
  for (std::uint32_t i = 0; i < config.model.params.size(); ++i) {
    if (!gradient_given[i])
      return Error{Code::usage,
                   "step " + std::to_string(step + 1) + ": parameter " +
                       config.model.params[i].name + " has no gradient on rank " +
                       std::to_string(index_of(parts.plan.rank())),
                   {}};
    if (!bound[i])
      return Error{Code::usage,
                   "parameter " + config.model.params[i].name + " has no weights bound on rank " +
                       std::to_string(index_of(parts.plan.rank())),
                   {}};
  }
  return {};
}

// Each element is counted once: by the first replica, where gradients are replicated by rank 0.
bool Engine::Impl::counts_for_norm() const {
  const Layout::Spec& spec = parts.plan.gradients().spec();
  const std::uint32_t rank = index_of(parts.plan.rank());
  if (spec.policy == formats::Policy::replicated) return rank == 0;
  return rank < spec.mesh.shard_world;
}

Result<StepResult> Engine::Impl::check_step(const StepArgs& args) {
  const TraceSpan span(config.trace, parts.plan.rank(), Lane::compute, "exact norm");
  ExactSum sum = counts_for_norm() ? sum_of_squares(gradients, pool) : ExactSum{};
  sum.carry();
  std::array<std::int64_t, 21> numbers{};
  std::ranges::copy(sum.limbs, numbers.begin());
  numbers.back() = sum.finite ? 0 : 1;
  EBB_TRY(ranks.sum(numbers));
  StepResult result;
  if (numbers.back() != 0 || !std::isfinite(args.inv_scale)) {
    result.skipped = true;
    result.norm = std::numeric_limits<double>::quiet_NaN();
    return result;
  }
  std::copy_n(numbers.begin(), sum.limbs.size(), sum.limbs.begin());
  sum.carry();
  result.norm = std::sqrt(sum.value()) * std::abs(args.inv_scale);
  if (args.max_norm > 0) result.clip = std::min(1.0, args.max_norm / (result.norm + 1e-6));
  return result;
}

Result<> Engine::Impl::gradients_in() {
  const TraceSpan span(config.trace, parts.plan.rank(), Lane::exchange, "gradients in");
  const auto begin = std::chrono::steady_clock::now();
  EBB_TRY(parts.gradients_in.run(
      ranks, [&](std::uint32_t param) { return gradients[param]; },
      [&](std::uint32_t param) { return std::span<float>(own_gradients[param]); }));
  stats.sent_bytes += ranks.world() > 1 ? parts.gradients_in.sent_bytes() : 0;
  stats.exchange_s += seconds_since(begin);
  return {};
}

Result<> Engine::Impl::weights_out() {
  const TraceSpan span(config.trace, parts.plan.rank(), Lane::exchange, "weights out");
  const auto begin = std::chrono::steady_clock::now();
  EBB_TRY(parts.weights_out.run(
      ranks, [&](std::uint32_t param) { return std::span<const float>(own_weight(param)); },
      [&](std::uint32_t param) { return weights[param]; }));
  stats.sent_bytes += ranks.world() > 1 ? parts.weights_out.sent_bytes() : 0;
  stats.exchange_s += seconds_since(begin);
  return {};
}

Result<StepResult> Engine::step(const StepArgs& args) {
  Impl& self = *impl_;
  const TraceSpan span(self.config.trace, self.parts.plan.rank(), Lane::step, "step");
  const auto begin = std::chrono::steady_clock::now();
  EBB_TRY(self.agree_all(self.check_gradients(), "checking gradients"));
  EBB_TRY(self.settle_snapshot(Impl::Patience::poll));
  EBB_TRY_ASSIGN(const StepResult result, self.check_step(args));
  if (!result.skipped) {
    EBB_TRY(self.gradients_in());
    const auto grad_scale = static_cast<float>(args.inv_scale * result.clip);
    Result<> swept = self.agree_all(self.update_sweep(grad_scale), "sweeping its state");
    if (!swept) {
      self.broken = Error{Code::state,
                          "this engine stopped in the middle of step " +
                              std::to_string(self.step + 1) + ": " + swept.error().message,
                          "open the store again: the last committed generation resumes"};
      return std::move(swept).error();
    }
    ++self.step;
    EBB_TRY(self.weights_out());
  }
  self.gradient_given.assign(self.gradient_given.size(), false);
  ++self.stats.steps;
  self.stats.step_s += seconds_since(begin);
  return result;
}

Result<> Engine::install_weights() {
  for (std::uint32_t i = 0; i < impl_->config.model.params.size(); ++i)
    if (!impl_->bound[i])
      return Error{Code::usage,
                   "parameter " + impl_->config.model.params[i].name + " has no weights bound",
                   "call bind_weights for all first"};
  EBB_TRY(impl_->agree_all(impl_->look_sweep(), "reading its weights"));
  return impl_->weights_out();
}

}  // namespace ebb::libmuon
