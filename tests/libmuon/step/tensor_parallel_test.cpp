// Parameters that are cut over an axis before their partition cuts them: each rank has a slice of a
// slice. The witness is one rank, without axes, and a communicator that counts.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>

#include "ebb/libswap/queue/io_queue.h"
#include "ebb/libswap/testing/memory_backend.h"
#include "tests/libmuon/support/said_steps.h"
#include "tests/libmuon/support/training.h"
#include "tests/libmuon/support/watched_ranks.h"
#include "tests/libmuon/support/world.h"

namespace ebb::test {
namespace {

using libmuon::Communicator;
using libmuon::Engine;
using libmuon::EngineConfig;
using libmuon::ModelSpec;
using libmuon::ParamSpec;

constexpr std::uint64_t kSteps = 3;
constexpr libmuon::StepArgs kArgs{.inv_scale = 0.5, .max_norm = 20};

// Without the axes: matrices cut by rows and by columns, stacks cut along each of their dimensions,
// embeddings and vectors of AdamW, and what every place has whole.
ModelSpec plain_model() {
  auto muon = libmuon::MuonSpec::keller();
  muon.weight_decay = 0.1;
  ModelSpec model;
  model.groups = {muon, libmuon::AdamSpec{.lr = 1e-2, .weight_decay = 0.01}};
  model.params = {{"emb", {36, 20}, 1},     {"norm", {20}, 1},           {"qkv", {60, 20}, 0},
                  {"out", {20, 20}, 0},     {"up", {44, 20}, 0},         {"up.bias", {44}, 1},
                  {"down", {20, 44}, 0},    {"wide", {4, 260}, 0},       {"stack", {4, 12, 28}, 0},
                  {"rows", {3, 16, 28}, 0}, {"columns", {3, 12, 20}, 0}, {"table", {33, 8}, 1}};
  return model;
}
const std::map<std::string, std::uint32_t> kCuts = {
    {"emb", 0},  {"qkv", 0},   {"out", 1},  {"up", 0},      {"up.bias", 0}, {"down", 1},
    {"wide", 1}, {"stack", 0}, {"rows", 1}, {"columns", 2}, {"table", 1}};

struct Case {
  std::uint32_t tensor = 1, data = 1, replica = 1;
  Policy gradients = Policy::zero3, weights = Policy::zero3;
  std::uint64_t chunk_bytes = 8192;
  bool tensor_first = false;  // of the axes: its ranks lie far apart
  libmuon::Placement placement = libmuon::Placement::owner;
  std::string text() const {
    return compose("tensor {} x data {} x replica {}, {} and {}, chunks of {}{}, placement {}",
                   tensor, data, replica, name_of(gradients), name_of(weights), chunk_bytes,
                   tensor_first ? ", tensor first" : "", name_of(placement));
  }
};

EngineConfig config_of(const Case& c) {
  EngineConfig config{.model = plain_model(),
                      .budget_bytes = 4 * 4096,
                      .tile_bytes = 4096,
                      .chunk_bytes = c.chunk_bytes,
                      .early_gradient_bytes = c.chunk_bytes};
  auto& axes = config.partition.axes;
  auto& parts = config.partition.parts;
  axes = {{"replica", c.replica}, {"data", c.data}, {"tensor", c.tensor}};
  if (c.tensor_first) std::rotate(axes.begin(), axes.end() - 1, axes.end());
  const auto side = [&](Policy policy, std::vector<std::string> copies) {
    Layout::Spec spec{.policy = policy, .align_elems = 4};
    return libmuon::AxisLayout{spec, {"data"}, std::move(copies)};
  };
  parts = {
      {"linear", side(c.gradients, {"replica"}), side(c.weights, {"replica"})},
      {"others", side(c.gradients, {"replica", "tensor"}), side(c.weights, {"replica", "tensor"})}};
  config.partition.placement = c.placement;
  for (ParamSpec& param : config.model.params) {
    const auto cut = kCuts.find(param.name);
    param.partition = cut == kCuts.end() ? "others" : "linear";
    if (cut != kCuts.end()) param.cuts = {{"tensor", cut->second}};
  }
  for (libmuon::AxisPartition& part : parts)
    for (libmuon::AxisLayout* one : {&part.gradients, &part.weights}) {
      std::vector<Shape> shapes;
      for (const ParamSpec& param : config.model.params) {
        if (param.partition != part.name) continue;
        shapes.push_back(param.shape);
        for (const auto& cut : param.cuts) shapes.back()[cut.dimension] /= c.tensor;
      }
      Layout::Spec lists{.policy = one->layout.policy, .mesh = {c.data, 1}};
      add_lists(shapes, lists);
      one->layout.owners = lists.owners;
      one->layout.rows = lists.rows;
    }
  add_what_tiles_need_beside(config);
  return config;
}

EngineConfig plain_config(std::uint32_t ranks) {
  const Layout::Spec zero3{.policy = Policy::zero3, .mesh = {ranks, 1}};
  EngineConfig config{.model = plain_model(),
                      .partition = {.gradients = zero3, .weights = zero3},
                      .budget_bytes = 4 * 4096,
                      .tile_bytes = 4096,
                      .chunk_bytes = 8192};
  add_what_tiles_need_beside(config);
  return config;
}

// Which elements of a parameter this rank has, one after another: by walking through all of them.
// Of the local slice's row-major elements the rank has a run, as its layout says.
std::vector<std::uint64_t> elements_of(const EngineConfig& config, const libmuon::StatePlan& plan,
                                       const libmuon::ModelLayout& side, std::uint32_t number) {
  const ParamSpec& param = config.model.params[number];
  const auto& axes = config.partition.axes;
  std::vector<std::uint64_t> local;
  for (std::uint64_t i = 0; i < formats::volume(param.shape); ++i) {
    bool here = true;
    for (const auto& cut : param.cuts) {
      std::uint32_t place = index_of(plan.rank()), parts = 1;
      for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
        parts = axis->size;
        if (axis->name == cut.axis) break;
        place /= axis->size;
      }
      std::uint64_t behind = 1;
      for (std::size_t d = cut.dimension + 1; d < param.shape.size(); ++d) behind *= param.shape[d];
      const std::uint64_t at = i / behind % param.shape[cut.dimension];
      here = at / (param.shape[cut.dimension] / parts) == place % parts;
    }
    if (here) local.push_back(i);
  }
  const auto part = side.part_with(number, plan.rank());
  if (!part) return {};
  const FlatRange held = part->held(plan.rank());
  const auto first = local.begin() + static_cast<std::ptrdiff_t>(held.first);
  return {first, first + static_cast<std::ptrdiff_t>(held.count)};
}

class Trainer {
 public:
  static Result<Trainer> open(World& world, Communicator& ranks, const EngineConfig& config) {
    Trainer trainer(config);
    EBB_TRY_ASSIGN(trainer.engine_, Engine::open(config, ranks, world.io(), world.swap(),
                                                 {.initial = noisy_weights}));
    const libmuon::StatePlan& plan = trainer.engine_->state_plan();
    const auto params = static_cast<std::uint32_t>(config.model.params.size());
    for (std::uint32_t param = 0; param < params; ++param) {
      trainer.given_.push_back(elements_of(config, plan, plan.gradients(), param));
      trainer.wanted_.push_back(elements_of(config, plan, plan.weights(), param));
      trainer.gradients_.emplace_back(trainer.given_[param].size());
      trainer.weights_->emplace_back(trainer.wanted_[param].size());
    }
    for (std::uint32_t param = 0; param < params; ++param)
      EBB_TRY(trainer.engine_->bind_weights(param, (*trainer.weights_)[param]));
    EBB_TRY(trainer.engine_->install_weights());
    return trainer;
  }

  Result<libmuon::StepResult> step() {
    for (std::uint32_t param = 0; param < gradients_.size(); ++param) {
      for (std::size_t i = 0; i < gradients_[param].size(); ++i)
        gradients_[param][i] = noise(param, engine_->step_count() + 1, given_[param][i]);
      EBB_TRY(engine_->gradient_ready(param, gradients_[param]));
    }
    return engine_->step(kArgs);
  }

  Result<> commit() {
    EBB_TRY(engine_->snapshot());
    EBB_TRY(engine_->wait_snapshot());
    return {};
  }

  void expect_weights(const std::map<std::string, std::vector<float>>& tensors,
                      const std::string& what) const {
    for (std::size_t param = 0; param < wanted_.size(); ++param) {
      const std::string& name = config_.model.params[param].name;
      const std::vector<float>& master = tensors.at(name + " master");
      for (std::size_t i = 0; i < wanted_[param].size(); ++i)
        ASSERT_EQ((*weights_)[param][i], master[wanted_[param][i]])
            << what << ": " << name << " at " << wanted_[param][i];
    }
  }

  Engine& engine() { return *engine_; }

 private:
  explicit Trainer(const EngineConfig& config) : config_(config) {}

  EngineConfig config_;
  std::vector<std::vector<std::uint64_t>> given_, wanted_;  // which elements those are
  std::vector<std::vector<float>> gradients_;
  std::unique_ptr<std::vector<std::vector<float>>> weights_ =
      std::make_unique<std::vector<std::vector<float>>>();  // their addresses are bound
  std::unique_ptr<Engine> engine_;
};

void expect_well(const std::vector<Result<>>& answers, const std::string& what) {
  for (const auto& answer : answers) ASSERT_TRUE(answer) << what << ": " << answer.error().message;
}

struct Alone {
  std::vector<double> norms;
  std::map<std::string, std::vector<float>> tensors;  // by name and state
};

Alone alone(std::uint64_t steps) {
  Alone all;
  const TempDir directory;
  World world(disk(), directory.path(), 1);
  expect_well(world.run([&](Communicator& ranks) -> Result<> {
    EBB_TRY_ASSIGN(Trainer trainer, Trainer::open(world, ranks, plain_config(1)));
    for (std::uint64_t step = 0; step < steps; ++step) {
      EBB_TRY_ASSIGN(const auto result, trainer.step());
      EXPECT_LT(result.clip, 1);
      all.norms.push_back(result.norm);
    }
    return trainer.commit();
  }),
              "alone");
  all.tensors = tensors_of(directory.path());
  return all;
}

void expect_bits_of_one_rank(const Case& c, const Alone& wanted) {
  const TempDir directory;
  World world(disk(), directory.path(), c.tensor * c.data * c.replica);
  const EngineConfig config = config_of(c);
  Sent sent;
  expect_well(world.run([&](Communicator& below) -> Result<> {
    WatchedDuplicates ranks(below, sent);
    EBB_TRY_ASSIGN(Trainer trainer, Trainer::open(world, ranks, config));
    EBB_TRY(expect_said_steps(trainer, ranks, config, sent, wanted.norms, c.text()));
    trainer.expect_weights(wanted.tensors, c.text());
    return trainer.commit();
  }),
              c.text());
  EXPECT_TRUE(tensors_of(directory.path()) == wanted.tensors) << c.text();
}

TEST(TensorParallel, HasTheBitsOfOneRankOnEveryWorldAndPartition) {
  const Alone wanted = alone(kSteps);
  for (const auto& [tensor, data] : {std::pair{2u, 1u}, {2u, 2u}, {4u, 1u}})
    for (const Policy policy :
         {Policy::zero3, Policy::rows, Policy::zero12, Policy::zero12_boundary, Policy::layer_wise,
          Policy::uneven_rows, Policy::replicated})
      expect_bits_of_one_rank(
          {.tensor = tensor, .data = data, .gradients = policy, .weights = policy}, wanted);
}

TEST(TensorParallel, HasTheBitsOfOneRankWhereWeightsAreCutInOtherWays) {
  const Alone wanted = alone(kSteps);
  for (const Policy gradients : {Policy::zero12, Policy::zero3, Policy::replicated})
    for (const Policy weights : {Policy::replicated, Policy::rows, Policy::zero12})
      for (const std::uint64_t chunk_bytes : {1u, 256u << 20})
        expect_bits_of_one_rank({.tensor = 2,
                                 .data = 2,
                                 .gradients = gradients,
                                 .weights = weights,
                                 .chunk_bytes = chunk_bytes,
                                 .tensor_first = true},
                                wanted);
}

TEST(TensorParallel, HasTheBitsOfOneRankWithCopies) {
  const Alone wanted = alone(kSteps);
  for (const Policy policy : {Policy::zero3, Policy::zero12, Policy::replicated})
    expect_bits_of_one_rank(
        {.tensor = 2, .data = 2, .replica = 2, .gradients = policy, .weights = policy}, wanted);
}

TEST(TensorParallel, HasTheBitsOfOneRankWhereStateIsOnShards) {
  const Alone wanted = alone(kSteps);
  for (const auto& [tensor, data, replica] :
       {std::array{2u, 1u, 1u}, {2u, 2u, 1u}, {4u, 1u, 1u}, {2u, 2u, 2u}})
    for (const Policy policy :
         {Policy::zero3, Policy::rows, Policy::zero12, Policy::zero12_boundary, Policy::layer_wise,
          Policy::uneven_rows, Policy::replicated})
      expect_bits_of_one_rank({.tensor = tensor,
                               .data = data,
                               .replica = replica,
                               .gradients = policy,
                               .weights = policy,
                               .tensor_first = data == 2,
                               .placement = libmuon::Placement::shard},
                              wanted);
}

// (g + w) x (numel - held) of each matrix, in fp32, where rows of a rank are all it has.
TEST(TensorParallel, SendsWhatTheOwnerDoesNotHold) {
  for (const std::uint32_t dimension : {0u, 1u}) {
    const Case c{.tensor = 2, .data = 2};
    EngineConfig config = config_of(c);
    config.model.params = {{"matrix", {32, 48}, 0, "linear", {}, {{"tensor", dimension}}}};
    std::uint64_t sent = 0;
    for (std::uint32_t rank = 0; rank < 4; ++rank) {
      const auto plan = Engine::plan(config, Rank{rank});
      ASSERT_TRUE(plan) << plan.error().message;
      sent += plan->step_sent_bytes;
    }
    EXPECT_EQ(sent, 8u * (32 * 48) * 3 / 4);
  }
}

TEST(TensorParallel, ThatIsNotTheSameOnAllRanksIsRefusedByName) {
  World world(libswap::make_memory_backend(libswap::MemoryDisk::create(1u << 28)), "/swap", 2);
  const auto answers = world.run([&](Communicator& ranks) -> Result<> {
    EngineConfig config = config_of({.tensor = 2});
    if (ranks.rank() == Rank{1}) config.model.params[3].cuts.front().dimension = 0;
    EBB_TRY(Trainer::open(world, ranks, config));
    return {};
  });
  for (const auto& answer : answers) {
    ASSERT_FALSE(answer);
    EXPECT_EQ(answer.error().code, Code::usage);
    EXPECT_NE(answer.error().message.find("dimension 1 cut over tensor"), std::string::npos)
        << answer.error().message;
  }
}

}  // namespace
}  // namespace ebb::test
