// What all ranks decide before a step: whether they can make it, and how long its gradient is.
#include "ebb/libmuon/step/engine_impl.h"
#include "ebb/libmuon/step/norm.h"
#include "ebb/libmuon/step/settings.h"
#include "ebb/libswap/sys/process.h"

namespace ebb::libmuon {

using libswap::Lane;
using libswap::TraceSpan;

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
    if (!gradients->has(i))
      return Error{Code::usage,
                   compose("step {}: parameter {} has no gradient on rank {}", steps.now() + 1,
                           config.model.params[i].name, index_of(parts.plan.rank()))};
    if (!bound[i])
      return Error{Code::usage, compose("parameter {} has no weights bound on rank {}",
                                        config.model.params[i].name, index_of(parts.plan.rank()))};
  }
  return highs_unchanged();
}

// A dispute over what is absent leaves nothing: what one rank handed in could not be taken back.
Result<> Engine::Impl::agree_on_absent() {
  const Result<> agreed = gradients->agree_on_absent();
  if (!agreed && agreed.error().code == Code::usage) forget_gradients();
  return agreed;
}

Result<StepResult> Engine::Impl::check_step(const StepArgs& args) {
  const TraceSpan span(config.trace, parts.plan.rank(), Lane::compute, "exact norm");
  EBB_TRY_ASSIGN(const Look mine, partial() ? look_at_sums() : gradients->look());
  return agree_on_norm(ranks, mine, args);
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
