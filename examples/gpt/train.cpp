#include "examples/gpt/train.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>

#include "ebb/libswap/sys/process.h"
#include "examples/gpt/batches.h"
#include "examples/gpt/flags.h"
#include "examples/gpt/layers.h"
#include "examples/gpt/loss.h"
#include "examples/gpt/reduce.h"
#include "examples/gpt/setup.h"

namespace ebb::gpt {
namespace {

using libmuon::Communicator;
using libmuon::Engine;
using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kInitialSeed = 1;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

class RankTrainer {
 public:
  RankTrainer(const Run& run, Communicator& ranks, std::atomic<bool>& exported)
      : run_(run),
        ranks_(ranks),
        exported_(exported),
        share_(share_of(ranks.rank(), ranks.world())),
        weights_(run.model.elems),
        gradients_(share_.count, std::vector<float>(run.model.elems)),
        mean_(ranks, run.model.elems),
        activations_(run.model) {}

  Result<Outcome> run();

 private:
  bool leads() const { return ranks_.rank() == Rank{0}; }
  Result<> open();
  Source source() const;
  Result<> check_export();
  Result<> train_steps();
  Result<> one_step();
  Result<ExactLoss> compute_gradients();
  Result<> hand_in_gradients();
  Result<> begin_step(double gradients_s, const ExactLoss& my_loss);
  Result<> end_step();
  Result<> skip();
  Result<> restore_state();
  Result<bool> take_snapshot();
  Result<> snapshot_if_due();
  Result<> tell_stats();
  Result<> finish_state();
  Result<> settle();
  Result<> add_up(const libmuon::EngineStats& before);
  Result<> find_longest_stall();
  Result<bool> asked_to_stop();
  void report_progress(const StepTimes& times);

  const Run& run_;
  Communicator& ranks_;
  std::atomic<bool>& exported_;
  const Share share_;
  std::vector<float> weights_;                 // of the whole model
  std::vector<std::vector<float>> gradients_;  // one a sequence
  GradientMean mean_;
  Activations<float> activations_;
  std::unique_ptr<Engine> engine_;
  std::optional<Exporter> exporter_;  // borrows the engine
  TrainerState state_ = run_.settings.begin;
  std::uint64_t steps_ = 0;           // made or in flight
  std::optional<StepTimes> running_;  // of the step in flight
  double waited_s_ = 0;               // for the optimizer, since the last step ended
  Outcome outcome_;
};

Result<Outcome> RankTrainer::run() {
  EBB_TRY(open());
  EBB_TRY(train_steps());
  EBB_TRY(finish_state());
  EBB_TRY_ASSIGN(outcome_.held_out_loss,
                 held_out_loss(run_.model, weights_, run_.corpus.held_out, ranks_, activations_));
  EBB_TRY(find_longest_stall());
  outcome_.last_step = engine_->step_count();
  outcome_.generation = engine_->committed_generation();
  outcome_.store = engine_->store_directory().string();
  outcome_.state = state_;
  return outcome_;
}

Result<> RankTrainer::open() {
  const std::vector<float> initial = initial_weights(run_.model, kInitialSeed);
  const auto part_of_initial = [&](std::uint32_t param, FlatRange range, std::span<float> into) {
    const std::uint64_t first = run_.model.parameters[param].first + range.first;
    std::copy_n(initial.begin() + static_cast<std::ptrdiff_t>(first), range.count, into.begin());
  };
  const std::size_t me = formats::index_of(ranks_.rank());
  auto opened = Engine::open(run_.engines[me], ranks_, run_.io, *run_.swap[me],
                             {.checkpoint = run_.resume_from, .initial = part_of_initial});
  if (!opened) return in_flags(std::move(opened).error(), source());
  engine_ = *std::move(opened);
  for (std::uint32_t i = 0; i < run_.model.parameters.size(); ++i) {
    const Parameter& parameter = run_.model.parameters[i];
    EBB_TRY(
        engine_->bind_weights(i, std::span(weights_).subspan(parameter.first, parameter.elems)));
  }
  EBB_TRY(engine_->install_weights());
  if (run_.settings.exported)
    exporter_.emplace(*run_.settings.exported, run_.settings.ranks, run_.io, *engine_,
                      ranks_.rank(), exported_);
  outcome_.origin = engine_->origin();
  outcome_.first_step = steps_ = engine_->step_count();
  if (leads()) run_.say(outcome_.origin);
  EBB_TRY(restore_state());
  return exporter_ ? check_export() : Result<>();
}

Source RankTrainer::source() const {
  if (run_.resume_from != nullptr) return {"resume-from", *run_.settings.resume_from};
  return {"swap", run_.settings.swap.directories.front()};
}

Result<> RankTrainer::check_export() {
  if (leads() && exporter_->too_late())
    run_.say(compose("note: nothing is exported: the run begins at step {}, behind --export-at {}",
                     outcome_.first_step, run_.settings.exported->step));
  const bool there = leads() && exporter_->is_there();
  EBB_TRY_ASSIGN(const std::int64_t missing, ranks_.agree(there ? 0 : 1));
  if (missing == 0) {
    exporter_->leave_out();
    if (leads())
      run_.say(compose("note: nothing is exported: {} holds step {} already",
                       run_.settings.exported->directory.string(), outcome_.first_step));
  }
  return libswap::agree_all(ranks_, exporter_->check(), "planning its export");
}

// A checkpoint of another program says nothing of ours: the data go on as if each step had drawn a
// batch.
Result<> RankTrainer::restore_state() {
  EBB_TRY_ASSIGN(const bool found, restore(state_, *engine_));
  if (found || engine_->step_count() == 0) return {};
  state_.next_sequence = engine_->step_count() * kBatch;
  if (leads())
    run_.say(
        compose("note: no data position there; it goes on with sequence {}", state_.next_sequence));
  return {};
}

Result<> RankTrainer::train_steps() {
  const libmuon::EngineStats before = engine_->stats();
  const Clock::time_point begin = Clock::now();
  while (steps_ < run_.settings.steps) {
    EBB_TRY_ASSIGN(outcome_.stopped, asked_to_stop());
    if (outcome_.stopped) break;
    EBB_TRY(one_step());
  }
  EBB_TRY(end_step());
  outcome_.seconds = seconds_since(begin);
  return add_up(before);
}

Result<> RankTrainer::tell_stats() {
  const std::uint64_t step = engine_->step_count();
  if (run_.stats == nullptr || (step % 10 != 0 && step != run_.settings.steps)) return {};
  return run_.stats->tell(ranks_.rank(), engine_->stats());
}

// Forward and backward run beside the step in flight, part by part behind its new weights.
Result<> RankTrainer::one_step() {
  const Clock::time_point begin = Clock::now();
  EBB_TRY_ASSIGN(const ExactLoss my_loss, compute_gradients());
  double gradients_s = seconds_since(begin) - waited_s_;
  EBB_TRY(end_step());
  const Clock::time_point computed = Clock::now();
  EBB_TRY(hand_in_gradients());
  gradients_s += seconds_since(computed);
  return begin_step(gradients_s, my_loss);
}

Result<> RankTrainer::begin_step(double gradients_s, const ExactLoss& my_loss) {
  const Clock::time_point begin = Clock::now();
  const double now = schedule(steps_, run_.settings.decay_end);
  const double full = std::visit([](const auto& spec) { return spec.lr; }, run_.settings.matrices);
  EBB_TRY(engine_->set_learning_rate(kMatrixGroup, full * now));
  EBB_TRY(engine_->set_learning_rate(kAdamGroup, kAdamRate * now));
  EBB_TRY_ASSIGN(const libmuon::StepResult result,
                 engine_->begin_step({.inv_scale = 1 / state_.loss_scale.value()}));
  EBB_TRY_ASSIGN(const double loss, sum_of_losses(ranks_, my_loss));
  waited_s_ = seconds_since(begin);
  state_.next_sequence += kBatch;
  if (result.skipped) return skip();
  state_.loss_scale.went_well();
  outcome_.train_loss = loss / kBatch;
  outcome_.losses.push_back(outcome_.train_loss);
  if (steps_ == outcome_.first_step) outcome_.first_loss = outcome_.train_loss;
  ++steps_;
  running_ = StepTimes{.gradients_s = gradients_s};
  return {};
}

Result<> RankTrainer::end_step() {
  if (!running_) return {};
  const libmuon::EngineStats before = engine_->stats();
  const Clock::time_point begin = Clock::now();
  EBB_TRY(engine_->wait_step());
  running_->waited_s = waited_s_ + seconds_since(begin);
  const libmuon::EngineStats after = engine_->stats();
  running_->engine_s = after.step_s - before.step_s;
  running_->swept_s = after.compute_s - before.compute_s;
  running_->exchange_s = after.exposed_exchange_s - before.exposed_exchange_s;
  constexpr std::uint64_t kWarmUp = 2;
  if (steps_ > outcome_.first_step + kWarmUp) outcome_.steps.push_back(*running_);
  report_progress(*running_);
  running_.reset();
  waited_s_ = 0;
  EBB_TRY(snapshot_if_due());
  return tell_stats();
}

Result<> RankTrainer::skip() {
  const std::uint32_t bits = state_.loss_scale.bits;
  waited_s_ = 0;
  if (!state_.loss_scale.overflowed())
    return Error{Code::state, compose("step {}: the gradient is not finite", steps_),
                 "the state is as it was; lower the learning rates in setup.h"};
  ++outcome_.skipped;
  if (leads())
    run_.say(compose("note: step {} skipped: gradients overflow at a loss scale of 2^{}",
                     steps_ + 1, bits));
  return {};
}

// Fills gradients_; returns the sum of this rank's losses.
Result<ExactLoss> RankTrainer::compute_gradients() {
  const auto scale = static_cast<float>(state_.loss_scale.value());
  const std::size_t length = run_.model.config.sequence + 1;
  Result<> ready;
  const auto wait_for_weights = [&](const Part& part) {
    const Clock::time_point begin = Clock::now();
    for (std::uint32_t i = 0; ready && i < part.parameters; ++i)
      ready = engine_->weights_ready(part.first_parameter + i);
    waited_s_ += seconds_since(begin);
  };
  ExactLoss loss;
  for (std::uint32_t i = 0; i < share_.count; ++i) {
    const auto tokens = sequence_of(run_.corpus.train, state_.seed,
                                    state_.next_sequence + share_.first + i, length);
    const double mine =
        forward<float>(run_.model, weights_, tokens, activations_, wait_for_weights);
    if (!ready) return ready.error();
    loss.add(mine);
    backward<float>(run_.model, weights_, tokens, activations_, gradients_[i], scale);
    for (const Parameter& parameter : run_.model.parameters)
      if (parameter.optimizer == Optimizer::frozen)
        std::ranges::fill(std::span(gradients_[i]).subspan(parameter.first, parameter.elems), 0.0f);
  }
  return loss;
}

// From the last part on, as backward finished them: a part's gradients travel while the next is
// reduced. The engine takes, parameter by parameter, what this rank's slice holds of it.
Result<> RankTrainer::hand_in_gradients() {
  const FlatRange slice = slice_of(run_.model.elems, ranks_.rank(), ranks_.world());
  for (std::size_t p = run_.model.parts.size(); p-- > 0;) {
    const Part& part = run_.model.parts[p];
    const FlatRange range{part.first, part.elems};
    EBB_TRY_ASSIGN(const std::span<const float> mean, mean_.reduce(gradients_, range));
    const std::uint64_t first = std::max(slice.first, range.first);
    for (std::uint32_t i = 0; i < part.parameters; ++i) {
      const std::uint32_t number = part.first_parameter + i;
      const Parameter& parameter = run_.model.parameters[number];
      const FlatRange held = formats::overlap(slice, {parameter.first, parameter.elems});
      EBB_TRY(engine_->gradient_ready(number, held.count > 0
                                                  ? mean.subspan(held.first - first, held.count)
                                                  : std::span<const float>()));
    }
  }
  return {};
}

Result<bool> RankTrainer::take_snapshot() {
  EBB_TRY(keep(state_, *engine_));
  return engine_->snapshot();
}

Result<> RankTrainer::snapshot_if_due() {
  if (exporter_) EBB_TRY(exporter_->advance());
  const std::uint64_t step = engine_->step_count();
  const bool due = step % run_.settings.snapshot_every == 0;
  if (!due && !(exporter_ && exporter_->wants_snapshot())) return {};
  const Clock::time_point begin = Clock::now();
  EBB_TRY_ASSIGN(const bool taken, take_snapshot());  // false: not now, a later step will
  outcome_.longest_snapshot_stall_s =
      std::max(outcome_.longest_snapshot_stall_s, seconds_since(begin));
  if (leads() && engine_->snapshot_error() != nullptr)
    run_.say("note: a snapshot was given up: " + engine_->snapshot_error()->message);
  if (taken && exporter_) exporter_->snapshot_taken();
  outcome_.snapshots += taken ? 1 : 0;
  return {};
}

// The last step is durable and everything that ran behind the steps is done. Whoever reads the
// store may hold the slots that the last snapshot needs: it waits for them.
Result<> RankTrainer::finish_state() {
  EBB_TRY(settle());
  for (std::uint64_t waits = 0; engine_->committed_step() != engine_->step_count();) {
    EBB_TRY_ASSIGN(const bool taken, take_snapshot());
    if (!taken) {
      if (leads() && waits++ == 0) run_.say("the last snapshot waits: the store is being read");
      libswap::sleep_for_seconds(0.02);
      continue;
    }
    ++outcome_.snapshots;
    EBB_TRY(settle());
    if (const Error* why = engine_->snapshot_error()) return *why;
  }
  outcome_.snapshots_put_off = engine_->stats().snapshots_put_off;
  return {};
}

Result<> RankTrainer::settle() {
  const auto waited = engine_->wait_snapshot();
  if (!waited && engine_->snapshot_error() == nullptr) return waited.error();
  if (!exporter_) return {};
  EBB_TRY(exporter_->advance());
  outcome_.exported = exporter_->finish();
  // Once rank 0 has written, every rank may unpin; those of other processes hear it here.
  EBB_TRY_ASSIGN(const std::int64_t written, ranks_.agree(leads() && !exported_.load() ? 0 : 1));
  if (written == 1) exported_.store(true);
  return exporter_->advance();
}

// All ranks stop at the same step: when one saw the request.
Result<bool> RankTrainer::asked_to_stop() {
  EBB_TRY_ASSIGN(const std::int64_t go_on, ranks_.agree(run_.stop.load() ? 0 : 1));
  return go_on == 0;
}

void RankTrainer::report_progress(const StepTimes& times) {
  const std::uint64_t step = engine_->step_count();
  if (!leads() || (step % 10 != 0 && step != run_.settings.steps)) return;
  std::array<char, 160> line{};
  std::snprintf(
      line.data(), line.size(), "step %3llu/%llu  loss %.3f  %.0f ms: gradients %.0f, waited %.0f",
      static_cast<unsigned long long>(step), static_cast<unsigned long long>(run_.settings.steps),
      outcome_.train_loss, 1e3 * (times.gradients_s + times.waited_s), 1e3 * times.gradients_s,
      1e3 * times.waited_s);
  run_.say(line.data());
}

// Of all ranks, by one of them.
Result<> RankTrainer::add_up(const libmuon::EngineStats& before) {
  const libmuon::EngineStats after = engine_->stats();
  std::array<std::int64_t, 3> bytes = {
      static_cast<std::int64_t>(after.read_bytes - before.read_bytes),
      static_cast<std::int64_t>(after.written_bytes - before.written_bytes),
      static_cast<std::int64_t>(after.sent_bytes - before.sent_bytes)};
  EBB_TRY(ranks_.sum(bytes));
  outcome_.traffic = {static_cast<std::uint64_t>(bytes[0]), static_cast<std::uint64_t>(bytes[1]),
                      static_cast<std::uint64_t>(bytes[2])};
  return {};
}

Result<> RankTrainer::find_longest_stall() {
  constexpr double kNanosecond = 1e-9;
  const auto mine = static_cast<std::int64_t>(outcome_.longest_snapshot_stall_s / kNanosecond);
  EBB_TRY_ASSIGN(const std::int64_t least, ranks_.agree(-mine));
  outcome_.longest_snapshot_stall_s = static_cast<double>(-least) * kNanosecond;
  return {};
}

}  // namespace

Result<Outcome> train(const Run& run, Team& team) {
  std::atomic<bool> exported = false;
  std::vector<Outcome> outcomes(run.settings.ranks);
  EBB_TRY(team.run([&](Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(outcomes[formats::index_of(ranks.rank())],
                   RankTrainer(run, ranks, exported).run());
    return {};
  }));
  return std::move(outcomes[0]);
}

}  // namespace ebb::gpt
