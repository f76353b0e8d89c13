// The ways out of a step that an I/O error stopped: going on with it, back to the last committed
// generation, or to another disk.
#include "ebb/libmuon/step/engine_impl.h"

namespace ebb::libmuon {

namespace {

// What a device that failed has in its memory is nobody's state.
Result<> device_works(const EngineConfig& config) {
  return config.accelerator != nullptr ? config.accelerator->device().status() : Result<>();
}

}  // namespace

Result<> Engine::Impl::not_stopped() const {
  EBB_TRY(fate.check(Fate::taking));
  EBB_TRY(fate.check(Fate::writing));
  return not_stopped_in_a_step();
}

Result<> Engine::Impl::not_stopped_in_a_step() const {
  EBB_TRY(fate.check(Fate::broken));
  EBB_TRY(fate.check(Fate::stopped));
  return device_works(setup.config);
}

Result<> Engine::Impl::can_go_on() const {
  EBB_TRY(fate.check(Fate::broken));
  if (fate.check(Fate::stopped))
    return Error{Code::state, "no step is stopped: there is nothing to continue",
                 "step() makes the next one"};
  return device_works(setup.config);
}

// A generation that was pending when the step stopped is settled first: its writes and the step's
// are the same disk's.
Result<StepResult> Engine::Impl::go_on() {
  end_step();
  EBB_TRY(agree_all(can_go_on(), "continuing its step"));
  EBB_TRY(home.settle(libswap::Snapshots::Mode::wait));
  fate.clear(Fate::stopped);
  {
    const libswap::MutexLock lock(ending);
    under_way.in_flight = true;
    under_way.began = Flow::Clock::now();
    under_way.name = "step, continued";
  }
  run->go_on();
  end_step();
  const libswap::MutexLock lock(ending);
  return *outcome;
}

Result<> Engine::Impl::roll_back() {
  end_step();
  const Result<> whole = fate.check(Fate::broken);
  EBB_TRY(agree_all(whole ? device_works(setup.config) : whole, "going back"));
  // A generation that a disk did not keep is none to wait for.
  if (Result<> settled = home.settle(libswap::Snapshots::Mode::wait);
      !settled && settled.error().code != Code::state)
    return settled;
  EBB_TRY(agree_all(home.has_committed(), "going back"));
  EBB_TRY(agree_all(home.has_no_export(), "going back"));
  run->forget_updates();
  run->close_sweep();
  home.close();
  EBB_TRY_ASSIGN(const bool resumed, resume(*home.directory().current(), {}));
  EBB_CHECK(resumed);  // it was this engine that wrote it
  fate.clear(Fate::stopped);
  fate.clear(Fate::undelivered);
  fate.clear(Fate::taking);
  fate.clear(Fate::writing);
  weights.set_installed(false);
  weights.set_half_taken({});
  forget_gradients();
  return {};
}

Result<> Engine::Impl::can_save_to(const libswap::SwapDirectory& other) const {
  EBB_TRY(fate.check(Fate::broken));
  EBB_TRY(fate.check(Fate::writing));
  if (const auto held = other.current(); held || &other == &home.directory())
    return Error{Code::usage,
                 compose("{} holds a store already: the state can only be saved to a new one",
                         other.path().string()),
                 "name a directory that is empty or does not exist, on another disk"};
  return {};
}

// Not in the middle of a step, or of weights being taken. What keeps bound masters is read only
// where these are not in their tiles.
bool Engine::Impl::can_cut() const {
  if (!fate.check(Fate::stopped) || !fate.check(Fate::taking)) return false;
  return weights.kept() == steps.now() || weights.unchanged(computing->pool()).has_value();
}

Result<StepResult> Engine::continue_step() {
  EBB_TRY_ASSIGN(const Entry::Inside inside, impl_->entry.alone("continue_step"));
  return impl_->go_on();
}

Result<> Engine::abandon_step() {
  {
    EBB_TRY_ASSIGN(const Entry::Inside inside, impl_->entry.alone("abandon_step"));
    if (Result<> back = impl_->roll_back(); !back) {
      if (!impl_->run->has_sweep()) {
        impl_->fate.set(Fate::broken,
                        {Code::state,
                         "this engine could not go back to the last committed generation: " +
                             back.error().message,
                         "open the store again"});
        impl_->setup.ranks
            .abort();  // nobody may wait for this rank in a collective it never reaches
      }
      return back;
    }
  }
  return install_weights();
}

Result<> Engine::save_to(libswap::SwapDirectory& other) {
  EBB_TRY_ASSIGN(const Entry::Inside inside, impl_->entry.alone("save_to"));
  Impl& self = *impl_;
  self.end_step();
  EBB_TRY(self.agree_all(self.can_save_to(other), "looking for another disk"));
  // A generation that the disk did not keep is no reason to stay there; ranks that are gone are
  // missed at once.
  static_cast<void>(self.home.settle(libswap::Snapshots::Mode::wait).has_value());
  EBB_TRY(self.home.move_to(other));
  EBB_TRY_ASSIGN(const std::int64_t all_can_cut, self.setup.ranks.agree(self.can_cut() ? 1 : 0));
  if (all_can_cut == 0) return {};
  EBB_TRY_ASSIGN(const bool begun, self.begin_snapshot());
  EBB_CHECK(begun);
  EBB_TRY(self.wait_for_snapshot());
  return {};
}

}  // namespace ebb::libmuon
