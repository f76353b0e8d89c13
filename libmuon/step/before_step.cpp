// A step from its call on, until it is under way: whether all ranks can make it, and how long its
// gradient is.
#include "ebb/libmuon/step/engine_impl.h"
#include "ebb/libmuon/step/norm.h"
#include "ebb/libmuon/step/settings.h"
#include "ebb/libswap/sys/process.h"

namespace ebb::libmuon {

using libswap::Lane;
using libswap::MutexLock;
using libswap::TraceSpan;

Result<> Engine::Impl::check_ready(const StepArgs& args) const {
  EBB_TRY(not_stopped());
  EBB_TRY(fate.check(Fate::undelivered));
  EBB_TRY(home.usable());
  EBB_TRY(validate(args));
  const ModelSpec& model = setup.config.model;
  for (std::uint32_t i = 0; i < model.params.size(); ++i) {
    if (!setup.plan().here(i)) continue;
    if (!gradients->has(i))
      return Error{Code::usage,
                   compose("step {}: parameter {} has no gradient on rank {}", steps.now() + 1,
                           model.params[i].name, index_of(setup.rank()))};
    if (!weights.bound(i))
      return Error{Code::usage, compose("parameter {} has no weights bound on rank {}",
                                        model.params[i].name, index_of(setup.rank()))};
  }
  return weights.unchanged(computing->pool());
}

// A dispute over what is absent leaves nothing: what one rank handed in could not be taken back.
Result<> Engine::Impl::agree_on_absent() {
  const Result<> agreed = gradients->agree_on_absent();
  if (!agreed && agreed.error().code == Code::usage) forget_gradients();
  return agreed;
}

Result<StepResult> Engine::Impl::check_step(const StepArgs& args) {
  const TraceSpan span(setup.config.trace, setup.rank(), Lane::compute, "exact norm");
  if (!setup.partial()) return agree_on_norm(setup.ranks, gradients->look(), args);
  const Result<Look> sums = run->look_at_sums();
  {
    const MutexLock lock(ending);
    take_counted();
  }
  EBB_TRY(sums);
  return agree_on_norm(setup.ranks, *sums, args);
}

Result<StepResult> Engine::begin_step(const StepArgs& args) {
  EBB_TRY_ASSIGN(const Entry::Inside inside, impl_->entry.alone("begin_step"));
  Impl& self = *impl_;
  self.end_step();
  const auto began = Flow::Clock::now();
  EBB_TRY(self.agree_all(self.check_ready(args), "checking its step"));
  EBB_TRY(libswap::same_everywhere(self.setup.ranks, settings_of(args, self.setup.config.model)));
  EBB_TRY(self.agree_on_absent());
  EBB_TRY(self.home.settle(libswap::Snapshots::Mode::poll));
  EBB_TRY_ASSIGN(const StepResult result, self.check_step(args));
  if (result.skipped) {
    self.forget_gradients();
    const MutexLock lock(self.ending);
    ++self.stats.steps;
    self.stats.step_s += libswap::seconds_since(began);
    self.outcome = result;
    return result;
  }
  {
    const MutexLock lock(self.ending);
    self.under_way = {.in_flight = true, .result = result, .began = began};
  }
  self.run->begin(static_cast<float>(args.inv_scale * result.clip));
  return result;
}

Result<StepResult> Engine::wait_step() {
  EBB_TRY_ASSIGN(const Entry::Inside inside, impl_->entry.alone("wait_step"));
  impl_->end_step();
  const MutexLock lock(impl_->ending);
  if (!impl_->outcome) return Error{Code::state, "no step was begun", "begin_step() begins one"};
  return *impl_->outcome;
}

Result<bool> Engine::step_ends_within(std::chrono::milliseconds limit) {
  EBB_TRY_ASSIGN(const Entry::Inside inside, impl_->entry.alone("step_ends_within"));
  return impl_->run->ends_within(limit);
}

Result<StepResult> Engine::step(const StepArgs& args) {
  EBB_TRY(begin_step(args));
  return wait_step();
}

}  // namespace ebb::libmuon
