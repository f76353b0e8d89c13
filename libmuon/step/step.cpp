// What all ranks decide before a step: whether they can make it, and how long its gradient is.
#include <algorithm>
#include <array>
#include <cmath>

#include "ebb/libmuon/step/engine_impl.h"
#include "ebb/libmuon/step/settings.h"
#include "ebb/libswap/sys/process.h"

namespace ebb::libmuon {

using formats::align_up;
using formats::div_ceil;
using libswap::Lane;
using libswap::TraceSpan;

namespace {

// Which of several equal copies of a gradient this rank holds: together they count it once.
struct Copy {
  std::uint32_t index = 0;
  std::uint32_t count = 1;
};

Copy copy_of(const ModelLayout& gradients, std::uint32_t param, Rank rank) {
  const auto gradient = gradients.part_with(param, rank);
  if (!gradient) return {};
  const formats::Mesh& mesh = gradient->mesh();
  const auto place = mesh.place_of(rank);
  if (gradient->replicated()) return {place->copy * mesh.shard_world + place->shard, mesh.ranks()};
  return {place->copy, mesh.replicas};
}

// All that this rank will use. Of copies, each rank has another share in the norm.
std::vector<LookRange> ranges_of(const ModelSpec& model, std::span<const libswap::Buffer> gradients,
                                 const StatePlan& plan) {
  constexpr std::uint64_t kShares = 64u << 10;  // elements: they are multiples of that
  std::vector<LookRange> ranges;
  for (std::uint32_t param = 0; param < gradients.size(); ++param) {
    const Copy copy = copy_of(plan.gradients(), param, plan.rank());
    const double limit = std::visit([](const auto& spec) { return largest_gradient(spec); },
                                    model.groups[model.params[param].group]);
    const libswap::Buffer& g = gradients[param];
    const std::uint64_t share = align_up(div_ceil(g.elems, copy.count), kShares);
    const std::uint64_t first = std::min(g.elems, copy.index * share);
    const std::uint64_t end = std::min(g.elems, first + share);
    ranges.push_back({g.sub(0, first), limit, false});
    ranges.push_back({g.sub(first, end - first), limit, true});
    ranges.push_back({g.sub(end, g.elems - end), limit, false});
  }
  std::erase_if(ranges, [](const LookRange& range) { return range.g.empty(); });
  return ranges;
}

}  // namespace

Result<> Engine::Impl::agree_all(const Result<>& mine, std::string_view doing) {
  return libswap::agree_all(ranks, mine, doing);
}

Result<> Engine::Impl::check_ready(const StepArgs& args) const {
  EBB_TRY(not_stopped());
  if (weights_owed) return *weights_owed;
  EBB_TRY(store->usable());
  EBB_TRY(validate(args));
  for (std::uint32_t i = 0; i < config.model.params.size(); ++i) {
    if (!parts.plan.here(i)) continue;
    if (!has_gradient(i))
      return Error{Code::usage,
                   compose("step {}: parameter {} has no gradient on rank {}", step + 1,
                           config.model.params[i].name, index_of(parts.plan.rank()))};
    if (!bound[i])
      return Error{Code::usage, compose("parameter {} has no weights bound on rank {}",
                                        config.model.params[i].name, index_of(parts.plan.rank()))};
  }
  return highs_unchanged();
}

// Where some are absent, on whichever rank. A dispute leaves nothing: what one rank handed in could
// not be taken back.
Result<> Engine::Impl::agree_on_absent() {
  absent.agree_on_none();
  EBB_TRY_ASSIGN(const std::int64_t none, ranks.agree(absent.any_said() ? 0 : 1));
  if (none == 1) return {};
  const Result<> agreed = absent.agree(ranks, config.model);
  if (!agreed && agreed.error().code == Code::usage) forget_gradients();
  return agreed;
}

// Where the gradients lie. Their events are waited for here and not in a queue of the device, in
// which what they depend on could come behind.
Look Engine::Impl::look() {
  for (const libswap::Event& event : gradient_events) computing->pool().help_until(event);
  return look_at(ranges_of(config.model, gradients, parts.plan), computing->of_gradients());
}

Look Engine::Impl::look_at(std::span<const LookRange> ranges, Kernels& near) {
  libswap::Pool& pool = computing->pool();
  Look found;
  const libswap::Buffer here = libswap::buffer_of(std::as_writable_bytes(std::span(&found, 1)));
  const libswap::Buffer there = near.device() == nullptr ? here : look_room.buffer();
  const libswap::Event done = near.look(ranges, there, {});
  pool.help_until(there.data == here.data ? done : libswap::copy(there, here, done));
  return found;
}

Result<StepResult> Engine::Impl::check_step(const StepArgs& args) {
  const TraceSpan span(config.trace, parts.plan.rank(), Lane::compute, "exact norm");
  EBB_TRY_ASSIGN(const Look mine, partial() ? look_at_sums() : look());
  ExactSum sum{.limbs = mine.squares};
  sum.carry();
  std::array<std::int64_t, 21> numbers{};
  std::ranges::copy(sum.limbs, numbers.begin());
  numbers.back() = std::isfinite(mine.largest) ? 0 : 1;
  EBB_TRY(ranks.sum(numbers));
  StepResult result;
  if (numbers.back() != 0) {
    result.skipped = true;
    result.norm = std::numeric_limits<double>::quiet_NaN();
    return result;
  }
  std::copy_n(numbers.begin(), sum.limbs.size(), sum.limbs.begin());
  sum.carry();
  result.norm = std::sqrt(sum.value()) * args.inv_scale;
  if (args.max_norm > 0) result.clip = std::min(1.0, args.max_norm / (result.norm + 1e-6));
  const bool safe = mine.largest * args.inv_scale * result.clip <= 1;
  EBB_TRY_ASSIGN(const std::int64_t all_safe, ranks.agree(safe ? 1 : 0));
  result.skipped = all_safe == 0;
  return result;
}

std::uint64_t Engine::Impl::steps_taken(std::uint32_t param) const {
  if (steps_ahead.empty()) return step;
  return static_cast<std::uint64_t>(static_cast<std::int64_t>(step) + steps_ahead[param]);
}

Result<StepResult> Engine::begin_step(const StepArgs& args) {
  EBB_TRY_ASSIGN(const Entry::Inside inside, impl_->entry.alone("begin_step"));
  Impl& self = *impl_;
  self.end_step();
  self.step_began = Flow::Clock::now();
  self.step_name = "step";
  EBB_TRY(self.agree_all(self.check_ready(args), "checking its step"));
  EBB_TRY(libswap::same_everywhere(self.ranks, settings_of(args, self.config.model)));
  EBB_TRY(self.agree_on_absent());
  EBB_TRY(self.settle_snapshot(libswap::Snapshots::Mode::poll));
  EBB_TRY_ASSIGN(self.running, self.check_step(args));
  if (!self.running.skipped) {
    self.begin_update(static_cast<float>(args.inv_scale * self.running.clip));
    return self.running;
  }
  self.forget_gradients();
  ++self.stats.steps;
  self.stats.step_s += libswap::seconds_since(self.step_began);
  self.step_outcome = self.running;
  return self.running;
}

Result<StepResult> Engine::wait_step() {
  EBB_TRY_ASSIGN(const Entry::Inside inside, impl_->entry.alone("wait_step"));
  impl_->end_step();
  if (!impl_->step_outcome)
    return Error{Code::state, "no step was begun", "begin_step() begins one"};
  return *impl_->step_outcome;
}

Result<StepResult> Engine::step(const StepArgs& args) {
  EBB_TRY(begin_step(args));
  return wait_step();
}

Result<> Engine::weights_ready(std::uint32_t param) const {
  if (param >= impl_->last_chunk.size())
    return Error{Code::usage, compose("there is no parameter {}", param)};
  return impl_->flow->wait_for_out(impl_->last_chunk[param]);
}

bool Engine::Impl::hands_out_updates() const {
  for (std::uint32_t i = 0; i < config.model.params.size(); ++i)
    if (out_of(config.model, i) == Out::update) return true;
  return false;
}

std::string Engine::Impl::way_back() const {
  if (in_halves())
    return "half of its masters is lost: open the store again, the last generation resumes";
  return hands_out_updates() ? "updates are handed out once: abandon_step() goes back to the last "
                               "committed generation, and so must the trainer's masters"
                             : "install_weights() hands them out";
}

Result<> Engine::Impl::can_install() const {
  EBB_TRY(not_stopped());
  if (weights_owed && hands_out_updates()) return *weights_owed;
  return {};
}

Result<> Engine::install_weights() {
  EBB_TRY_ASSIGN(const Entry::Inside inside, impl_->entry.alone("install_weights"));
  impl_->end_step();
  EBB_TRY(impl_->agree_all(impl_->can_install(), "installing its weights"));
  for (std::uint32_t i = 0; i < impl_->config.model.params.size(); ++i)
    if (impl_->parts.plan.here(i) && !impl_->bound[i])
      return Error{Code::usage,
                   "parameter " + impl_->config.model.params[i].name + " has no weights bound",
                   "call bind_weights for all first"};
  return impl_->install();
}

}  // namespace ebb::libmuon
