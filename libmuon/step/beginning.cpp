#include "ebb/libmuon/step/beginning.h"

#include <algorithm>

#include "ebb/formats/conversion/convert.h"
#include "ebb/formats/describe.h"
#include "ebb/formats/native/survey.h"
#include "ebb/libmuon/step/check_start.h"
#include "ebb/libmuon/step/continuity.h"

namespace ebb::libmuon {

namespace {

Error drops_state(const StoredState& stored, std::string_view format) {
  std::string message =
      compose("the {} checkpoint holds state of parameters that the model has not: {}", format,
              stored.lost);
  if (!stored.fresh.empty())
    message += compose("; it has not these of the model: {}", stored.fresh);
  return {Code::layout, std::move(message),
          "a name that changed: ckpt-convert --rename; parameters that are gone: "
          "EngineConfig::dropped = DroppedState::allowed goes on without their state. Until then "
          "nothing changes"};
}

void add_note(std::string& notes, const std::string& text) {
  if (!text.empty()) notes += (notes.empty() ? "" : "; ") + text;
}

}  // namespace

Beginning::Beginning(const Setup& setup, const Start& start)
    : setup_(setup),
      start_(start),
      initial_(start.weights.empty() ? start.initial : InitialWeights()),
      checkpoint_(start.checkpoint) {}
Beginning::~Beginning() = default;

Result<> Beginning::open_store(const std::vector<std::filesystem::path>& folders) {
  EBB_TRY_ASSIGN(scattered_,
                 libswap::ScatteredStore::open(setup_.ranks, setup_.io.backend(), folders));
  return {};
}

Result<> Beginning::work(std::string_view doing, const std::function<Result<>()>& mine) {
  return scattered_ ? scattered_->run(setup_.ranks, doing, mine)
                    : setup_.ranks.together(doing, mine);
}

std::string_view Beginning::fingerprint() const {
  return checkpoint_ == nullptr ? std::string_view() : checkpoint_->catalog().producer;
}

Result<Beginning::Known> Beginning::read() {
  if (scattered_) {
    EBB_TRY_ASSIGN(previous_, formats::describe(scattered_->tree()));
    checkpoint_ = previous_.get();
    EBB_TRY(check_store());
  }
  Known known;
  if (checkpoint_ == nullptr) return known;
  const EngineConfig& config = setup_.config;
  const Catalog& catalog = checkpoint_->catalog();
  EBB_TRY_ASSIGN(StoredState stored, find_stored(catalog, config.model, setup_.plan()));
  if (config.dropped == DroppedState::refused && !stored.lost.empty())
    return drops_state(stored, catalog.format);
  held_ = std::move(stored.held);
  if (!initial_ && start_.weights.empty() && std::ranges::find(held_, Held::nothing) != held_.end())
    return Error{Code::usage, "parameters have no initial weights: " + stored.differences,
                 "pass weights, or initial ones, to Engine::open"};
  EBB_TRY_ASSIGN(known.notes, compare_groups(config.model, catalog, held_));
  add_note(known.notes, stored.differences);
  EBB_TRY_ASSIGN(known.taken, formats::counted_steps(*checkpoint_));
  // Where nobody counts for all, the step is that of the parameter that has taken the most.
  std::int64_t most = 0;
  for (const auto& [name, steps] : known.taken) most = std::max(most, steps);
  known.step = static_cast<std::uint64_t>(std::max<std::int64_t>(0, catalog.step.value_or(most)));
  for (std::size_t i = 0; i < held_.size(); ++i)
    if (held_[i] != Held::all) known.taken[config.model.params[i].name] = 0;
  return known;
}

Result<> Beginning::check_store() const {
  if (!start_.expected.any()) return {};
  EBB_TRY_ASSIGN(const auto survey, formats::native::survey_store(*scattered_->tree(), ""));
  EBB_TRY(survey.complete());
  return check(start_.expected,
               {survey.superblock().store, survey.committed(),
                static_cast<std::uint64_t>(checkpoint_->catalog().step.value_or(0))});
}

bool Beginning::takes_bound(std::uint32_t param) const {
  if (start_.weights.empty() || setup_.plan().out(param) == Out::update) return false;
  return checkpoint_ == nullptr || held_[param] == Held::nothing;
}

Result<> Beginning::fill_from_initial(Sweep& sweep, std::uint64_t step) const {
  const ModelSpec& model = setup_.config.model;
  const StatePlan& plan = setup_.plan();
  return sweep.create(step, [&](std::uint64_t tile, std::span<std::byte> bytes) -> Result<> {
    for (const auto& segment : plan.segments(plan.tiles()[tile])) {
      if (!initial_ || !plan.columns().of_masters(segment.state)) continue;
      const std::string& name = model.params[segment.param].name;
      EBB_TRY(fill_masters(name, segment, bytes, masters_from(initial_, segment.param, name)));
    }
    return {};
  });
}

Result<> Beginning::fill(Sweep& sweep, std::uint64_t step) const {
  if (checkpoint_ == nullptr) return fill_from_initial(sweep, step);
  const StatePlan& plan = setup_.plan();
  StateSource source(*checkpoint_, setup_.config.model, plan, held_, initial_);
  return sweep.create(step, [&](std::uint64_t tile, std::span<std::byte> bytes) {
    return source.fill(plan.segments(plan.tiles()[tile]), bytes);
  });
}

}  // namespace ebb::libmuon
