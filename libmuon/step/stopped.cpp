// A step that an I/O error cut: going on with it, or back to the last committed generation.
#include "ebb/libmuon/step/engine_impl.h"

namespace ebb::libmuon {

namespace {

// What a device that failed has in its memory is nobody's state.
Result<> device_works(const EngineConfig& config) {
  return config.accelerator != nullptr ? config.accelerator->device().status() : Result<>();
}

}  // namespace

Result<> Engine::Impl::not_stopped() const {
  if (broken) return *broken;
  if (stopped) return *stopped;
  return device_works(config);
}

// A generation that was pending when the step stopped is settled first: its writes and the step's
// are the same disk's.
Result<StepResult> Engine::Impl::go_on() {
  end_step();
  Result<> can;
  if (broken)
    can = *broken;
  else if (!stopped)
    can = Error{Code::state, "no step is stopped: there is nothing to continue",
                "step() makes the next one"};
  else
    can = device_works(config);
  EBB_TRY(agree_all(can, "continuing its step"));
  EBB_TRY(settle_snapshot(libswap::Snapshots::Mode::wait));
  step_began = Flow::Clock::now();
  step_name = "step, continued";
  stopped.reset();
  sweep->go_on();
  fly();
  flow->go_on();
  end_step();
  return *step_outcome;
}

Result<> Engine::Impl::go_back() {
  end_step();
  EBB_TRY(agree_all(broken ? Result<>(*broken) : device_works(config), "going back"));
  // A generation that a disk did not keep is none to wait for.
  if (Result<> settled = settle_snapshot(libswap::Snapshots::Mode::wait);
      !settled && settled.error().code != Code::state)
    return settled;
  EBB_TRY(agree_all(directory->current() ? Result<>()
                                         : Error{Code::state, directory->path().string() +
                                                                  " holds no committed generation"},
                    "going back"));
  // An export reads through the store that would be opened a second time.
  EBB_TRY(agree_all(store.use_count() == 1
                        ? Result<>()
                        : Error{Code::busy, "an export holds a generation of this store",
                                "finish the export, then go back"},
                    "going back"));
  stats = all_stats();
  if (updates != nullptr) updates->forget();
  snapshots.reset();
  sweep.reset();
  store.reset();
  notes.clear();
  EBB_TRY_ASSIGN(const bool resumed, resume(*directory->current()));
  EBB_CHECK(resumed);  // it was this engine that wrote it
  stopped.reset();
  weights_owed.reset();
  if (handed_out) handed_out->forget();
  forget_gradients();
  return {};
}

EngineStats Engine::Impl::all_stats() const {
  EngineStats all = stats;
  all.pool = computing->pool().stats();
  all.bf16 = computing->chosen_bf16();
  if (!snapshots) return all;
  all.snapshots_put_off += snapshots->put_off();
  all.add(sweep->cache().stats());
  return all;
}

Result<StepResult> Engine::continue_step() {
  EBB_TRY_ASSIGN(const Entry::Inside inside, impl_->entry.alone("continue_step"));
  return impl_->go_on();
}

Result<> Engine::abandon_step() {
  {
    EBB_TRY_ASSIGN(const Entry::Inside inside, impl_->entry.alone("abandon_step"));
    if (Result<> back = impl_->go_back(); !back) {
      if (impl_->sweep == nullptr) {
        impl_->broken = Error{Code::state,
                              "this engine could not go back to the last committed generation: " +
                                  back.error().message,
                              "open the store again"};
        impl_->ranks.abort();  // nobody may wait for this rank in a collective it never reaches
      }
      return back;
    }
  }
  return install_weights();
}

}  // namespace ebb::libmuon
