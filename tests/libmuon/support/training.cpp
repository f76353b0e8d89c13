#include "tests/libmuon/support/training.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <thread>

#include "ebb/formats/core/bf16.h"
#include "ebb/libswap/store/store_set.h"
#include "ebb/libswap/sys/process.h"
#include "tests/libmuon/support/trainer_buffer.h"
#include "tests/libmuon/support/world.h"

namespace ebb::test {
namespace {

using libmuon::Engine;

struct RankRun {
  const Training& setup;
  const libmuon::ModelSpec model = setup.model;
  std::vector<TrainerBuffer> weights, gradients;

  TrainerBuffer make(libmuon::Side side, std::uint64_t count, DType dtype) const {
    const bool there = side == libmuon::Side::device && setup.accelerator != nullptr;
    return {there ? &setup.accelerator->device() : nullptr, count, dtype};
  }

  std::uint64_t elems(std::size_t param) const {
    return formats::volume(model.params[param].shape);
  }

  // What a micro-batch adds to the elements that this rank holds.
  std::vector<float> part(const libmuon::StatePlan& plan, std::uint32_t param, std::uint64_t step,
                          std::uint32_t batch) const {
    const FlatRange held = plan.gradients().held(param, plan.rank());
    std::vector<float> values;
    for (std::uint64_t i = 0; i < held.count; ++i) {
      const float value = noise(param, step + 1000 * batch, held.first + i);
      values.push_back(setup.bf16_gradients ? formats::bf16_to_f32(formats::f32_to_bf16(value))
                                            : value);
    }
    const bool poisoned = step == setup.poison_step && batch == 0;
    if (poisoned && held.count > 0 && held.first == 0 && param == 3)
      values[0] = std::numeric_limits<float>::quiet_NaN();
    return values;
  }

  std::vector<float> sum_of(const libmuon::StatePlan& plan, std::uint32_t param,
                            std::uint64_t step) const {
    std::vector<float> sum = part(plan, param, step, 0);
    for (std::uint32_t batch = 1; batch < setup.micro_batches; ++batch)
      std::ranges::transform(part(plan, param, step, batch), sum, sum.begin(),
                             [](float g, float all) { return all + g; });
    return sum;
  }

  Result<> hand_in(const libmuon::StatePlan& plan, std::uint64_t step, Engine& engine) {
    if (setup.hand_in == libmuon::HandIn::added) return add_gradients(plan, step, engine);
    for (std::uint32_t param = 0; param < model.params.size(); ++param) {
      std::ranges::copy(sum_of(plan, param, step), gradients[param].values().begin());
      EBB_TRY(engine.gradient_ready(param, gradients[param].buffer(), gradients[param].send()));
    }
    return {};
  }

  // Of every second parameter the last one is said to be the last.
  Result<> add_gradients(const libmuon::StatePlan& plan, std::uint64_t step, Engine& engine) {
    for (std::uint32_t batch = 0; batch < setup.micro_batches; ++batch)
      for (std::uint32_t param = 0; param < model.params.size(); ++param) {
        TrainerBuffer& buffer = gradients[param];
        std::ranges::copy(part(plan, param, step, batch), buffer.values().begin());
        if (batch + 1 == setup.micro_batches && param % 2 == 0) {
          EBB_TRY(engine.gradient_ready(param, buffer.buffer(), buffer.send()));
          continue;
        }
        EBB_TRY_ASSIGN(const libswap::Event added,
                       engine.add_gradient(param, buffer.buffer(), buffer.send()));
        added.wait();  // the next micro-batch has the same buffer
      }
    return {};
  }

  Result<> run(libmuon::Communicator& ranks, libswap::IoQueue& io,
               libswap::SwapDirectory& directory, std::uint64_t last_step, Finish finish,
               const Checkpoint* checkpoint, Outcome& outcome) {
    const auto config = config_of(setup, model);
    const std::uint32_t rank = index_of(ranks.rank());
    EBB_TRY_ASSIGN(outcome.plans[rank], Engine::plan(config, ranks.rank(), setup.wire));
    EBB_TRY_ASSIGN(const auto engine,
                   Engine::open(config, ranks, io, directory,
                                {.checkpoint = checkpoint, .initial = noisy_weights}));
    const auto& plan = engine->state_plan();
    for (std::uint32_t param = 0; param < model.params.size(); ++param) {
      gradients.push_back(make(setup.gradients_on,
                               plan.gradients().local_elems(param, ranks.rank()),
                               model.params[param].gradient));
      weights.push_back(make(setup.weights_on, plan.weights().local_elems(param, ranks.rank()),
                             model.params[param].weight));
      EBB_TRY(engine->bind_weights(param, weights[param].buffer()));
    }
    EBB_TRY(engine->install_weights());
    if (rank == 0) outcome.origin = engine->origin();
    std::uint64_t tried = engine->step_count();
    while (tried < last_step) {
      EBB_TRY(hand_in(plan, ++tried, *engine));
      EBB_TRY_ASSIGN(const auto result, engine->step({.max_norm = setup.max_norm}));
      if (rank == 0) outcome.results.push_back(result);
      if (setup.snapshot_every != 0 && tried % setup.snapshot_every == 0) {
        EBB_TRY_ASSIGN([[maybe_unused]] const bool begun, engine->snapshot());
      }
    }
    if (finish == Finish::snapshot) {
      EBB_TRY_ASSIGN([[maybe_unused]] const auto before, engine->wait_snapshot());
      EBB_TRY_ASSIGN([[maybe_unused]] const bool begun, engine->snapshot());
      EBB_TRY_ASSIGN(const auto generation, engine->wait_snapshot());
      if (rank == 0) outcome.generation = generation;
    }
    outcome.stats[rank] = engine->stats();
    if (rank != 0) return {};
    outcome.step = engine->step_count();
    for (TrainerBuffer& weight : weights) {
      const auto values = weight.fetch();
      outcome.weights.insert(outcome.weights.end(), values.begin(), values.end());
    }
    return {};
  }
};

std::uint64_t next_directory() {
  static std::atomic<std::uint64_t> count = 0;
  return count++;
}

// Of the ranks' errors, that of one which failed itself; what the others were told is its echo.
std::string first_cause(std::span<const std::optional<Error>> errors) {
  std::string echo;
  for (const auto& error : errors) {
    if (error && error->code != Code::peer) return error->message;
    if (error && echo.empty()) echo = error->message;
  }
  return echo;
}

}  // namespace

libmuon::ModelSpec nuisance_model() {
  libmuon::ModelSpec model;
  auto muon = libmuon::MuonSpec::keller();
  muon.weight_decay = 0.1;
  model.groups = {muon, libmuon::AdamSpec{.lr = 1e-2, .weight_decay = 0.01}};
  model.params = {
      {"emb", {37, 24}, 1},        {"blk.0.norm", {24}, 1},   {"blk.0.qkv", {72, 24}, 0},
      {"blk.0.proj", {24, 24}, 0}, {"scale", {}, 1},          {"blk.0.up", {96, 24}, 0},
      {"blk.0.down", {24, 96}, 0}, {"conv", {3, 5, 2, 2}, 1}, {"row", {1, 24}, 0},
      {"prime", {31, 13}, 0},      {"head", {37, 24}, 1}};
  return model;
}

libmuon::ModelSpec with_bf16_weights(libmuon::ModelSpec model) {
  for (libmuon::ParamSpec& param : model.params) param.weight = DType::bf16;
  return model;
}

void add_what_tiles_need_beside(libmuon::EngineConfig& config, libmuon::Side wire) {
  const std::uint64_t for_tiles = config.budget_bytes;
  config.budget_bytes = ~std::uint64_t{0};
  std::uint64_t beside = 0;
  for (std::uint32_t rank = 0; rank < libmuon::world_of(config.partition); ++rank)
    if (const auto plan = Engine::plan(config, Rank{rank}, wire))
      beside = std::max(beside, (*plan).memory_bytes - (*plan).frame_bytes);
  config.budget_bytes = for_tiles + beside;
}

libmuon::EngineConfig config_of(const Training& setup, const libmuon::ModelSpec& model) {
  std::vector<Shape> shapes;
  for (const libmuon::ParamSpec& param : model.params) shapes.push_back(param.shape);
  const auto layout = [&](Policy policy) {
    Layout::Spec spec{
        .policy = policy, .mesh = {setup.ranks / setup.copies, setup.copies}, .align_elems = 16};
    add_lists(shapes, spec);
    return spec;
  };
  libmuon::EngineConfig config{.model = model,
                               .partition = {.gradients = layout(setup.gradients),
                                             .weights = layout(setup.weights),
                                             .placement = setup.placement,
                                             .hand_in = setup.hand_in},
                               .budget_bytes = setup.budget_bytes,
                               .tile_bytes = setup.tile_bytes,
                               .chunk_bytes = setup.chunk_bytes,
                               .early_gradient_bytes = setup.early_gradient_bytes,
                               .stream_above_bytes = setup.stream_above_bytes,
                               .slots = setup.slots,
                               .threads = setup.threads,
                               .accelerator = setup.accelerator,
                               .gradients_on = setup.gradients_on,
                               .weights_on = setup.weights_on,
                               .tiers = setup.tiers,
                               .bf16 = setup.bf16,
                               .dtypes = setup.dtypes};
  add_what_tiles_need_beside(config, setup.wire);
  return config;
}

Outcome train(const Training& setup, const std::filesystem::path& directory,
              std::uint64_t last_step, Finish finish, const Checkpoint* checkpoint) {
  Outcome outcome;
  outcome.stats.resize(setup.ranks);
  outcome.plans.resize(setup.ranks);
  auto chosen = libswap::open_backend(libswap::BackendChoice::automatic);
  if (!chosen) return outcome.error = chosen.error().message, outcome;
  auto io = libswap::IoQueue::start(std::move((*chosen).backend), {});
  if (!io) return outcome.error = io.error().message, outcome;
  auto swap = libswap::SwapDirectory::open(**io, directory);
  if (!swap) return outcome.error = swap.error().message, outcome;
  auto ranks = libmuon::make_thread_ranks(setup.ranks);
  if (setup.wire == libmuon::Side::host)
    for (auto& rank : ranks) rank = std::make_unique<HostRanks>(std::move(rank));
  std::vector<std::optional<Error>> errors(setup.ranks);
  std::vector<std::thread> threads;
  for (std::uint32_t rank = 0; rank < setup.ranks; ++rank)
    threads.emplace_back([&, rank] {
      RankRun run{setup};
      const auto result =
          run.run(*ranks[rank], **io, **swap, last_step, finish, checkpoint, outcome);
      if (!result) {
        errors[rank] = result.error();
        ranks[rank]->abort();
      }
    });
  for (std::thread& thread : threads) thread.join();
  outcome.error = first_cause(errors);
  return outcome;
}

Outcome train_in_process(const Training& setup, libmuon::Communicator& ranks,
                         const std::filesystem::path& directory, std::uint64_t last_step,
                         const std::vector<std::filesystem::path>& sources) {
  Outcome outcome;
  outcome.stats.resize(setup.ranks);
  outcome.plans.resize(setup.ranks);
  const auto run = [&]() -> Result<> {
    EBB_TRY_ASSIGN(auto chosen, libswap::open_backend(libswap::BackendChoice::automatic));
    EBB_TRY_ASSIGN(const auto io, libswap::IoQueue::start(std::move(chosen.backend), {}));
    EBB_TRY_ASSIGN(const auto swap, libswap::SwapDirectory::open(*io, directory, ranks, sources));
    return RankRun{setup}.run(ranks, *io, *swap, last_step, Finish::snapshot, nullptr, outcome);
  };
  if (const auto done = run(); !done) outcome.error = done.error().message;
  return outcome;
}

TempDir::TempDir()
    : path_(std::filesystem::current_path() /
            ("engine-test-" + std::to_string(libswap::process_id()) + "-" +
             std::to_string(next_directory()))) {
  std::filesystem::create_directories(path_);
}

TempDir::~TempDir() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace ebb::test
