#include "ebb/libmuon/step/gradients.h"

#include <utility>

#include "ebb/libmuon/step/flow.h"
#include "ebb/libmuon/step/norm.h"
#include "ebb/libmuon/step/side.h"
#include "ebb/libmuon/step/trainer_buffer.h"

namespace ebb::libmuon {

using libswap::Buffer;
using libswap::Event;
using libswap::MutexLock;

Gradients::Gradients(const Setup& setup, const Computing& computing, const StepCount& steps,
                     std::optional<GradientSums> sums)
    : setup_(setup),
      computing_(computing),
      steps_(steps),
      absent_(setup.plan()),
      given_(setup.plan().params(), 0),
      sums_(std::move(sums)),
      early_(setup.plan(), setup.chunks(), setup.prepared.early_chunks),
      handed_in_(setup.plan().params()) {}

Result<std::unique_ptr<Gradients>> Gradients::make(const Setup& setup, const Computing& computing,
                                                   const StepCount& steps) {
  libswap::Device* const device = device_of(setup.config, setup.config.gradients_on);
  std::optional<GradientSums> sums;
  if (setup.config.partition.hand_in == HandIn::added) {
    EBB_TRY_ASSIGN(sums, GradientSums::make(setup.plan(), device));
  }
  return std::unique_ptr<Gradients>(new Gradients(setup, computing, steps, std::move(sums)));
}

Result<> Gradients::may_hand_in(std::uint32_t param, const Buffer& my_pieces) const {
  EBB_TRY(may_hand_in(param));
  const StatePlan& plan = setup_.plan();
  const EngineConfig& config = setup_.config;
  return check_buffer(config, plan.rank(), param, my_pieces,
                      {"gradient", plan.gradients(), &ParamSpec::gradient, config.gradients_on});
}

Result<> Gradients::may_hand_in(std::uint32_t param) const {
  if (param >= given_.size()) return Error{Code::usage, compose("there is no parameter {}", param)};
  if (given_[param] != 0)
    return Error{Code::state,
                 compose("parameter {} has its gradient of step {} already",
                         setup_.config.model.params[param].name, steps_.now() + 1),
                 sums_ ? "gradient_ready() takes the last of a step"
                       : "add gradients up before they are handed in, or see HandIn::added"};
  return {};
}

Result<> Gradients::take(std::uint32_t param, Buffer my_pieces, Event ready, Flow& flow) {
  const MutexLock lock(handing_in_);
  EBB_TRY(may_hand_in(param, my_pieces));
  if (sums_) {
    ready = sums_->add(computing_.near(setup_.config.gradients_on), param, my_pieces, ready);
    my_pieces = sums_->of(param);
  }
  handed_in(param, {my_pieces, std::move(ready)}, flow);
  return {};
}

Result<> check_without(WithoutGradient how) {
  if (how == WithoutGradient::untouched || how == WithoutGradient::zero) return {};
  return Error{Code::usage,
               compose("no_gradient: {} is no way to do without one", static_cast<unsigned>(how)),
               "it is WithoutGradient::untouched or zero"};
}

Result<> Gradients::take_none(std::uint32_t param, WithoutGradient how, Flow& flow) {
  const MutexLock lock(handing_in_);
  EBB_TRY(may_hand_in(param));
  if (sums_ && sums_->any(param))
    return Error{Code::state,
                 compose("parameter {} is said to have no gradient in step {}, of which some was "
                         "added",
                         setup_.config.model.params[param].name, steps_.now() + 1),
                 "gradient_ready() takes the last of a step"};
  if (setup_.plan().here(param)) absent_.say(param, how);
  handed_in(param, {}, flow);
  return {};
}

void Gradients::handed_in(std::uint32_t param, HandedIn what, Flow& flow) {
  set(param, std::move(what));
  given_[param] = 1;
  flow.ready_early(early_.add(param));
}

Result<> Gradients::may_add() const {
  if (setup_.config.partition.hand_in == HandIn::added) return {};
  return Error{Code::usage, "this engine takes one gradient a step of each parameter",
               "set PartitionSpec::hand_in to HandIn::added, or call gradient_ready"};
}

Result<Event> Gradients::add(std::uint32_t param, const Buffer& my_pieces, const Event& ready) {
  const MutexLock lock(handing_in_);
  EBB_TRY(may_hand_in(param, my_pieces));
  Event added = sums_->add(computing_.near(setup_.config.gradients_on), param, my_pieces, ready);
  set(param, {sums_->of(param), added});
  return added;
}

void Gradients::set(std::uint32_t param, HandedIn what) {
  const MutexLock lock(mutex_);
  handed_in_[param] = std::move(what);
}

Gradients::HandedIn Gradients::get(std::uint32_t param) const {
  const MutexLock lock(mutex_);
  return handed_in_[param];
}

bool Gradients::has(std::uint32_t param) const {
  const MutexLock lock(handing_in_);
  return given_[param] != 0 || (sums_ && sums_->any(param));
}

Buffer Gradients::of(const Transit& transit) const {
  const StatePlan& plan = setup_.plan();
  const std::uint64_t first =
      plan.gradients().place(transit.param, plan.rank(), transit.range.first);
  return get(transit.param).buffer.sub(first, transit.range.count);
}

void Gradients::wait_for(std::uint32_t param) const { get(param).ready.wait(); }

// A dispute leaves nothing: what one rank handed in could not be taken back.
Result<> Gradients::agree_on_absent() {
  absent_.agree_on_none();
  EBB_TRY_ASSIGN(const std::int64_t none, setup_.ranks.agree(absent_.any_said() ? 0 : 1));
  if (none == 1) return {};
  return absent_.agree(setup_.ranks, setup_.config.model);
}

// Their events are waited for here and not in a queue of the device, in which what they depend on
// could come behind.
Look Gradients::look() const {
  libswap::Pool& pool = computing_.pool();
  std::vector<Buffer> gradients;
  for (std::uint32_t param = 0; param < setup_.plan().params(); ++param) {
    const HandedIn here = get(param);
    pool.help_until(here.ready);
    gradients.push_back(here.buffer);
  }
  return computing_.look(look_ranges(setup_.config.model, gradients, setup_.plan()),
                         setup_.config.gradients_on);
}

void Gradients::forget() {
  const MutexLock lock(handing_in_);
  given_.assign(given_.size(), 0);
  early_.forget();
  absent_.forget();
  if (sums_) sums_->forget();
}

}  // namespace ebb::libmuon
