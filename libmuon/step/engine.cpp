// The calls of an Engine, and how its steps end.
#include "ebb/libmuon/step/engine.h"

#include <chrono>
#include <utility>

#include "ebb/libmuon/step/engine_impl.h"
#include "ebb/libmuon/step/manifest_template.h"
#include "ebb/libmuon/step/predict.h"
#include "ebb/libmuon/step/settings.h"
#include "ebb/libswap/sys/process.h"

namespace ebb::libmuon {

using libswap::MutexLock;

namespace {

Error lost(const Flow::Ended& ended) {
  return {Code::state,
          "this engine ran out of memory in the middle of a call: " + ended.why->message,
          "open the store again: the last committed generation resumes"};
}

}  // namespace

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() { impl_->entry.process().let_go(std::move(impl_)); }

Result<EnginePlan> Engine::plan(const EngineConfig& config, Rank rank, Side wire) {
  return predict(config, rank, wire);
}

Result<> Engine::Impl::agree_all(const Result<>& mine, std::string_view doing) {
  return libswap::agree_all(setup.ranks, mine, doing);
}

Result<> Engine::Impl::may_hand_in() {
  end_step();
  return not_stopped();
}

void Engine::Impl::forget_gradients() {
  run->flow().drop_early();
  gradients->forget();
}

void Engine::Impl::take_counted() {
  const EngineStats more = run->take_counted();
  stats.sent_bytes += more.sent_bytes;
  stats.exchange_s += more.exchange_s;
  stats.exposed_exchange_s += more.exposed_exchange_s;
  stats.compute_s += more.compute_s;
}

void Engine::Impl::end_step() {
  const MutexLock lock(ending);
  if (!std::exchange(under_way.in_flight, false)) return;
  const Flow::Ended ended = run->wait();
  take_counted();
  stats.step_s += std::chrono::duration<double>(ended.at - under_way.began).count();
  if (libswap::Trace* const trace = setup.config.trace)
    trace->add_step(setup.rank(), under_way.name, steps.now() + 1, under_way.began, ended.at);
  outcome = outcome_of(ended);
}

Result<StepResult> Engine::Impl::outcome_of(const Flow::Ended& ended) {
  std::optional<Error> owed;
  if (ended.not_out) {
    owed = Error{Code::state,
                 compose("the weights of step {} were not handed out to all ranks: {}",
                         steps.now() + 1, ended.not_out->message),
                 weights.way_back()};
    // Masters, or halves of them, that did not reach the trainer are nowhere else.
    fate.set(setup.bound_masters() ? Fate::broken : Fate::undelivered, *owed);
  }
  const std::string where =
      compose("this engine stopped in the middle of step {}: ", steps.now() + 1);
  switch (ended.how) {
    case Flow::Ended::How::whole:
      break;
    case Flow::Ended::How::stopped:
      fate.set(Fate::stopped, {Code::state, where + ended.why->message,
                               "continue_step() goes on with it, abandon_step() goes back to the "
                               "last committed generation"});
      return *ended.why;
    case Flow::Ended::How::invalid:
    case Flow::Ended::How::apart:
      if (ended.begun)
        fate.set(Fate::broken, {Code::state, where + ended.why->message,
                                "open the store again: the last committed generation resumes"});
      return *ended.why;
    case Flow::Ended::How::lost:
      fate.set(Fate::broken, lost(ended));
      return *ended.why;
  }
  steps.count(gradients->absent());
  gradients->forget();
  ++stats.steps;
  if (!owed) return under_way.result;
  // What happened to this step; the next call is out of order.
  Error why = *owed;
  why.code = ended.not_out->code;
  return why;
}

EngineStats Engine::Impl::all_stats() const {
  const MutexLock lock(ending);
  EngineStats all = stats;
  all.pool = computing->pool().stats();
  all.bf16 = computing->chosen_bf16();
  const libswap::StateHome::Counted counted = home.counted();
  all.add(counted);
  all.snapshots_put_off = counted.snapshots_put_off;
  return all;
}

Result<> Engine::Impl::keep_bound() {
  if (!setup.bound_masters()) return {};
  // Whole ones may have been written since, where all ranks have them: install_weights() can fail.
  std::int64_t may_differ = 0;
  if (!setup.in_halves()) {
    EBB_TRY_ASSIGN(may_differ, setup.ranks.agree(weights.installed() ? 1 : 0));
  }
  if (weights.kept() == steps.now() && may_differ == 0) return {};
  EBB_TRY(agree_all(weights.unchanged(computing->pool()), "reading its bound masters"));
  weights.set_kept(std::nullopt);
  EBB_TRY(ended_well(run->keep_bound({})));
  weights.set_kept(steps.now());
  return {};
}

Result<> Engine::Impl::ended_well(const Flow::Ended& ended) {
  {
    const MutexLock lock(ending);
    take_counted();
  }
  if (ended.how == Flow::Ended::How::lost)
    fate.set(Fate::broken, lost(ended));
  else if (ended.why)
    run->sweep().go_on();  // a tile that could not be read or written still is to be
  if (ended.why) return *ended.why;
  return ended.not_out ? Result<>(*ended.not_out) : Result<>();
}

Result<> Engine::Impl::can_install() const {
  EBB_TRY(not_stopped());
  return weights.hands_out_updates() ? fate.check(Fate::undelivered) : Result<>();
}

Result<> Engine::Impl::install() {
  if (setup.bound_masters()) EBB_TRY(home.settle(libswap::Snapshots::Mode::poll));
  EBB_TRY(keep_bound());
  EBB_TRY(ended_well(run->hand_out_weights()));
  weights.set_installed(true);
  fate.clear(Fate::undelivered);
  return {};
}

libswap::Snapshots::MakeManifest Engine::Impl::manifest() const {
  return [groups = setup.config.model.groups, blobs_now = home.blobs().all(), ahead = steps.ahead(),
          step_now = steps.now(), kernels = computing->fingerprint(),
          &params = setup.config.model.params, &plan = setup.plan()]() mutable {
    auto manifest = manifest_template(params, groups, plan);
    manifest.fingerprint = std::move(kernels);
    manifest.blobs = std::move(blobs_now);
    for (std::size_t i = 0; i < ahead.size(); ++i)
      manifest.param_steps[params[i].name] = static_cast<std::int64_t>(step_now) + ahead[i];
    return manifest;
  };
}

Result<bool> Engine::Impl::begin_snapshot() {
  end_step();
  const auto begin = std::chrono::steady_clock::now();
  EBB_TRY(agree_all(not_stopped(), "beginning a snapshot"));
  run->sweep().go_on();  // what a disk refused behind the last step is written now
  const auto keep = [this] { return keep_bound(); };
  EBB_TRY_ASSIGN(const bool begun, home.begin_snapshot(steps.now(), manifest(), keep));
  const MutexLock lock(ending);
  if (begun) stats.snapshot_s += libswap::seconds_since(begin);
  return begun;
}

Result<std::uint64_t> Engine::Impl::wait_for_snapshot() {
  end_step();
  EBB_TRY(agree_all(not_stopped(), "waiting for a snapshot"));
  return home.wait_snapshot();
}

Result<> Engine::bind_weights(std::uint32_t param, libswap::Buffer my_pieces) {
  EBB_TRY_ASSIGN(const Entry::Inside inside, impl_->entry.alone("bind_weights"));
  impl_->end_step();
  EBB_TRY(impl_->not_stopped());
  return impl_->weights.bind(param, my_pieces);
}

Result<> Engine::install_weights() {
  EBB_TRY_ASSIGN(const Entry::Inside inside, impl_->entry.alone("install_weights"));
  impl_->end_step();
  EBB_TRY(impl_->agree_all(impl_->can_install(), "installing its weights"));
  const Setup& setup = impl_->setup;
  for (std::uint32_t i = 0; i < setup.config.model.params.size(); ++i)
    if (setup.plan().here(i) && !impl_->weights.bound(i))
      return Error{Code::usage,
                   "parameter " + setup.config.model.params[i].name + " has no weights bound",
                   "call bind_weights for all first"};
  return impl_->install();
}

Result<> Engine::gradient_ready(std::uint32_t param, libswap::Buffer my_pieces,
                                libswap::Event ready) {
  EBB_TRY_ASSIGN(const Entry::Inside inside, impl_->entry.handing_in("gradient_ready"));
  EBB_TRY(impl_->may_hand_in());
  return impl_->gradients->take(param, my_pieces, std::move(ready), impl_->run->flow());
}

Result<libswap::Event> Engine::add_gradient(std::uint32_t param, libswap::Buffer my_pieces,
                                            const libswap::Event& ready) {
  EBB_TRY_ASSIGN(const Entry::Inside inside, impl_->entry.handing_in("add_gradient"));
  EBB_TRY(impl_->gradients->may_add());
  EBB_TRY(impl_->may_hand_in());
  return impl_->gradients->add(param, my_pieces, ready);
}

Result<> Engine::no_gradient(std::uint32_t param, WithoutGradient how) {
  EBB_TRY_ASSIGN(const Entry::Inside inside, impl_->entry.handing_in("no_gradient"));
  EBB_TRY(check_without(how));
  EBB_TRY(impl_->may_hand_in());
  return impl_->gradients->take_none(param, how, impl_->run->flow());
}

Result<> Engine::weights_ready(std::uint32_t param) const {
  EBB_TRY(impl_->entry.process().check());
  EBB_TRY_ASSIGN(const std::size_t last, impl_->weights.last_chunk(param));
  return impl_->run->flow().wait_for_out(last);
}

Result<formats::native::Group> Engine::group(std::uint32_t group) const {
  EBB_TRY(impl_->entry.process().check());
  return group_of(impl_->setup.config.model, group);
}

Result<> Engine::set(std::uint32_t group, std::string_view name, double value) {
  EBB_TRY_ASSIGN(const Entry::Inside inside, impl_->entry.alone("set"));
  impl_->end_step();
  EBB_TRY(impl_->not_stopped());
  return change(impl_->setup.config.model, group, name, value);
}

Result<> Engine::set_learning_rate(std::uint32_t group, double lr) { return set(group, "lr", lr); }

Result<bool> Engine::snapshot() {
  EBB_TRY_ASSIGN(const Entry::Inside inside, impl_->entry.alone("snapshot"));
  return impl_->begin_snapshot();
}

Result<std::uint64_t> Engine::wait_snapshot() {
  EBB_TRY_ASSIGN(const Entry::Inside inside, impl_->entry.alone("wait_snapshot"));
  return impl_->wait_for_snapshot();
}

Result<> Engine::set_blob(std::string key, ByteVector bytes) {
  EBB_TRY_ASSIGN(const Entry::Inside inside, impl_->entry.alone("set_blob"));
  impl_->end_step();
  EBB_TRY(impl_->not_stopped());
  return impl_->home.blobs().set(std::move(key), std::move(bytes));
}

const ByteVector* Engine::blob(std::string_view key) const { return impl_->home.blobs().find(key); }

std::vector<std::string> Engine::blob_keys() const {
  std::vector<std::string> keys;
  for (const formats::native::Blob& blob : impl_->home.blobs().all()) keys.push_back(blob.key);
  return keys;
}

std::uint64_t Engine::step_count() const { return impl_->steps.now(); }
std::uint64_t Engine::steps_taken(std::uint32_t param) const { return impl_->steps.taken(param); }
const StatePlan& Engine::state_plan() const { return impl_->setup.plan(); }
const std::string& Engine::origin() const { return impl_->home.origin(); }

std::uint64_t Engine::committed_generation() const {
  return impl_->entry.process().here() ? impl_->home.committed_generation() : 0;
}
std::uint64_t Engine::committed_step() const { return impl_->home.committed_step(); }
const Error* Engine::snapshot_error() const { return impl_->home.snapshot_error(); }
const std::filesystem::path& Engine::store_directory() const { return impl_->home.path(); }

Result<PinnedCheckpoint> Engine::open_export() const {
  EBB_TRY(impl_->entry.process().check());
  EBB_TRY(impl_->not_stopped());
  const libswap::StateHome& home = impl_->home;
  return PinnedCheckpoint::pin(home.store(), home.path(), home.committed_generation(),
                               home.committed_step());
}

EngineStats Engine::stats() const {
  return impl_->entry.process().here() ? impl_->all_stats() : EngineStats();
}

}  // namespace ebb::libmuon
