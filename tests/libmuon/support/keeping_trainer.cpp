#include "tests/libmuon/support/keeping_trainer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>

#include "ebb/libmuon/spec/presets.h"
#include "ebb/libswap/queue/io_queue.h"
#include "tests/libmuon/support/elements.h"

namespace ebb::test {
namespace {

using libmuon::Communicator;
using libmuon::Engine;
using libmuon::MuonSpec;
using libmuon::Out;

}  // namespace

libmuon::ModelSpec keeping_model(const std::vector<std::uint32_t>& updates) {
  libmuon::ModelSpec model = nuisance_model();
  std::get<MuonSpec>(model.groups[0]).weight_decay = 0;
  MuonSpec other = MuonSpec::keller();
  other.lr = 0.01;
  other.momentum = libmuon::Momentum::sum;
  other.scale = libmuon::ScaleRule::match_rms_adamw;
  model.groups.push_back(other);
  model.groups.push_back(MuonSpec::keller());
  for (int i = 0; i < 6; ++i)
    model.params.push_back({compose("small.{}", i), {6, 5}, i % 3 == 0 ? 2u : 0u});
  model.params.push_back({"stack", {4, 12, 28}, 2});
  model.params.push_back({"third.up", {40, 24}, 3});
  model.params.push_back({"third.down", {24, 40}, 3});
  model.params[5].group = 2;
  for (const std::uint32_t group : updates)
    std::get<MuonSpec>(model.groups[group]).out = Out::update;
  return model;
}

void weights_with_zeros(std::uint32_t param, FlatRange range, std::span<float> into) {
  noisy_weights(param, range, into);
  if (param != kZeroParam) return;
  for (std::uint64_t i = 0; i < range.count; ++i)
    if ((range.first + i) % 5 == 0) into[i] = -0.0f;
}

bool KeepingTrainer::keeps(std::uint32_t param) const {
  return out_of(config_.model, param) == Out::update;
}

Result<KeepingTrainer> KeepingTrainer::open(World& world, Communicator& ranks,
                                            const libmuon::EngineConfig& config,
                                            const Tensors* kept, const Checkpoint* checkpoint) {
  KeepingTrainer one(config);
  EBB_TRY_ASSIGN(one.engine_,
                 Engine::open(config, ranks, world.io(), world.swap(),
                              {.checkpoint = checkpoint, .initial = weights_with_zeros}));
  const libmuon::StatePlan& plan = one.engine_->state_plan();
  for (std::uint32_t param = 0; param < plan.params(); ++param) {
    one.gradients_.emplace_back(nullptr, plan.gradients().local_elems(param, ranks.rank()));
    one.bound_.emplace_back(nullptr, plan.weights().local_elems(param, ranks.rank()),
                            config.model.params[param].weight);
    std::vector<float>& masters = one.kept_.emplace_back();
    if (!one.keeps(param)) continue;
    masters.resize(plan.weights().local_elems(param, ranks.rank()));
    const std::string name = config.model.params[param].name + " master";
    for_elements(plan.weights(), param, plan.rank(),
                 [&](std::uint64_t element, std::uint64_t place) {
                   if (kept != nullptr)
                     masters[place] = kept->at(name)[element];
                   else
                     weights_with_zeros(param, {element, 1}, std::span(masters).subspan(place, 1));
                 });
  }
  for (std::uint32_t param = 0; param < plan.params(); ++param)
    if (plan.here(param)) EBB_TRY(one.engine_->bind_weights(param, one.bound_[param].buffer()));
  EBB_TRY(one.engine_->install_weights());
  return one;
}

Result<> KeepingTrainer::hand_in_one(std::uint32_t param, float scale) {
  const libmuon::StatePlan& plan = engine_->state_plan();
  if (!plan.here(param)) return {};
  TrainerBuffer& gradient = gradients_[param];
  const std::uint64_t step = engine_->step_count() + 1;
  for_elements(
      plan.gradients(), param, plan.rank(), [&](std::uint64_t element, std::uint64_t place) {
        gradient.values()[place] = param == kZeroParam ? 0.0f : scale * noise(param, step, element);
      });
  return engine_->gradient_ready(param, gradient.buffer(), gradient.send());
}

Result<> KeepingTrainer::hand_in(float scale) {
  for (std::uint32_t param = 0; param < kept_.size(); ++param) EBB_TRY(hand_in_one(param, scale));
  return {};
}

Result<> KeepingTrainer::hand_in_but(std::uint32_t untouched) {
  for (std::uint32_t param = 0; param < kept_.size(); ++param) {
    if (param != untouched) {
      EBB_TRY(hand_in_one(param, 1));
    } else if (engine_->state_plan().here(param)) {
      EBB_TRY(engine_->no_gradient(param, libmuon::WithoutGradient::untouched));
    }
  }
  return {};
}

Result<libmuon::StepResult> KeepingTrainer::step(const libmuon::StepArgs& args) {
  return engine_->step(args);
}

void KeepingTrainer::add_updates() {
  const auto updates = handed_out();
  for (std::size_t param = 0; param < kept_.size(); ++param)
    for (std::size_t i = 0; i < kept_[param].size(); ++i) kept_[param][i] += updates[param][i];
}

Result<> KeepingTrainer::train(std::uint64_t steps) {
  for (std::uint64_t i = 0; i < steps; ++i) {
    EBB_TRY(hand_in());
    EBB_TRY_ASSIGN(const auto result, step());
    EXPECT_FALSE(result.skipped);
    add_updates();
  }
  return {};
}

Result<> KeepingTrainer::commit() {
  EBB_TRY(engine_->snapshot());
  EBB_TRY(engine_->wait_snapshot());
  return {};
}

std::vector<std::vector<float>> KeepingTrainer::handed_out() {
  std::vector<std::vector<float>> all;
  for (TrainerBuffer& bound : bound_) {
    const auto values = bound.fetch();
    all.emplace_back(values.begin(), values.end());
  }
  return all;
}

std::vector<std::vector<float>> KeepingTrainer::weights() {
  auto all = handed_out();
  for (std::uint32_t param = 0; param < kept_.size(); ++param)
    if (keeps(param)) all[param] = kept_[param];
  return all;
}

std::string KeepingTrainer::differing(const Tensors& masters) {
  const auto own = weights();
  std::string all;
  for (std::uint32_t param = 0; param < own.size(); ++param) {
    const std::string& name = config_.model.params[param].name;
    const std::vector<float>& wanted = masters.at(name + " master");
    bool same = true;
    for_elements(engine_->state_plan().weights(), param, engine_->state_plan().rank(),
                 [&](std::uint64_t element, std::uint64_t place) {
                   same = same && std::bit_cast<std::uint32_t>(own[param][place]) ==
                                      std::bit_cast<std::uint32_t>(wanted[element]);
                 });
    if (!same) all += (all.empty() ? "" : ", ") + name;
  }
  return all;
}

Tensors trained_alone(const libmuon::ModelSpec& model, std::uint64_t steps) {
  libmuon::ModelSpec keeping = model;
  for (libmuon::GroupSpec& group : keeping.groups)
    if (auto* const muon = std::get_if<MuonSpec>(&group)) muon->out = Out::weights;
  const Training setup{.model = keeping};
  const TempDir directory;
  auto chosen = libswap::open_backend(libswap::BackendChoice::automatic);
  EBB_CHECK(chosen.has_value());
  World world(std::move(chosen->backend), directory.path(), 1);
  for (const auto& answer : world.run([&](Communicator& ranks) -> Result<> {
         EBB_TRY_ASSIGN(auto one, KeepingTrainer::open(world, ranks, config_of(setup, keeping)));
         EBB_TRY(one.train(steps));
         return one.commit();
       }))
    EXPECT_TRUE(answer) << answer.error().message;
  return tensors_of(directory.path());
}

}  // namespace ebb::test
