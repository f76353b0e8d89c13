#include "tests/libmuon/support/world.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "ebb/formats/core/bf16.h"
#include "ebb/formats/core/float_cast.h"
#include "ebb/formats/describe.h"
#include "ebb/formats/elements/box_reader.h"
#include "ebb/libswap/tree/file_tree.h"
#include "tests/libmuon/support/elements.h"

namespace ebb::test {

std::unique_ptr<libswap::IoBackend> disk() {
  auto chosen = libswap::open_backend(libswap::BackendChoice::automatic);
  EBB_CHECK(chosen.has_value());
  return std::move(chosen->backend);
}

using libmuon::Engine;

float noise(std::uint64_t a, std::uint64_t b, std::uint64_t c) {
  std::uint64_t x = a * 0x9e3779b97f4a7c15ull + b * 0xbf58476d1ce4e5b9ull + c + 1;
  for (int round = 0; round < 3; ++round) {
    x ^= x >> 31;
    x *= 0x94d049bb133111ebull;
  }
  return static_cast<float>(static_cast<std::int64_t>(x >> 40) - (1 << 23)) * 0x1p-23f;
}

void add_lists(std::span<const Shape> shapes, Layout::Spec& spec) {
  const std::uint32_t shards = spec.mesh.shard_world;
  for (std::uint32_t i = 0; i < shapes.size(); ++i) {
    if (spec.policy == Policy::layer_wise) spec.owners.push_back(i % shards);
    if (spec.policy != Policy::uneven_rows) continue;
    auto& rows = spec.rows.emplace_back(shards, 0);
    std::uint64_t left = shapes[i].empty() ? 1 : shapes[i][0];
    for (std::uint32_t shard = i; left > 0; shard += 2) {
      const std::uint64_t some = shard > i + 4 ? left : formats::div_ceil(left, 3);
      rows[shard % shards] += some;
      left -= some;
    }
  }
}

void noisy_weights(std::uint32_t param, FlatRange range, std::span<float> into) {
  for (std::uint64_t i = 0; i < range.count; ++i) into[i] = noise(1000 + param, 0, range.first + i);
}

void noisy_bf16_weights(std::uint32_t param, FlatRange range, std::span<float> into) {
  noisy_weights(param, range, into);
  for (float& value : into) value = formats::bf16_to_f32(formats::f32_to_bf16(value));
}

Result<libswap::Event> HostRanks::begin_exchange(std::span<const libmuon::SendBuffer> sends,
                                                 std::span<const libmuon::ReceiveBuffer> receives,
                                                 std::span<const libswap::Event> after) {
  for (const auto& send : sends) EBB_CHECK(send.data.device == nullptr);
  for (const auto& receive : receives) EBB_CHECK(receive.data.device == nullptr);
  return RanksBelow::begin_exchange(sends, receives, after);
}

Result<std::unique_ptr<libmuon::Communicator>> HostRanks::duplicate() {
  EBB_TRY_ASSIGN(auto below, RanksBelow::duplicate());
  return std::unique_ptr<Communicator>(std::make_unique<HostRanks>(std::move(below)));
}

World::World(std::unique_ptr<libswap::IoBackend> backend, const std::filesystem::path& directory,
             std::uint32_t ranks)
    : path_(directory) {
  auto io = libswap::IoQueue::start(std::move(backend), {});
  EBB_CHECK(io.has_value());
  io_ = std::move(*io);
  reopen(ranks);
}

void World::reopen(std::uint32_t ranks) {
  swap_.reset();
  auto swap = libswap::SwapDirectory::open(*io_, path_);
  EBB_CHECK(swap.has_value());
  swap_ = std::move(*swap);
  ranks_ = libmuon::make_thread_ranks(ranks);
}

void World::reconnect() {
  ranks_ = libmuon::make_thread_ranks(static_cast<std::uint32_t>(ranks_.size()));
}

std::vector<Result<>> World::run(const std::function<Result<>(libmuon::Communicator&)>& body) {
  std::vector<Result<>> answers(ranks_.size());
  std::vector<std::thread> threads;
  for (std::size_t rank = 0; rank < ranks_.size(); ++rank)
    threads.emplace_back([&, rank] {
      answers[rank] = body(*ranks_[rank]);
      if (!answers[rank]) ranks_[rank]->abort();
    });
  for (std::thread& thread : threads) thread.join();
  return answers;
}

Result<RankEngine> RankEngine::open(World& world, libmuon::Communicator& ranks,
                                    const libmuon::EngineConfig& config,
                                    const Checkpoint* checkpoint) {
  return open(world.io(), world.swap(), ranks, config, checkpoint);
}

Result<RankEngine> RankEngine::open(libswap::IoQueue& io, libswap::SwapDirectory& swap,
                                    libmuon::Communicator& ranks,
                                    const libmuon::EngineConfig& config,
                                    const Checkpoint* checkpoint) {
  RankEngine one;
  one.config_ = config;
  one.rank_ = ranks.rank();
  EBB_TRY_ASSIGN(one.engine_, Engine::open(config, ranks, io, swap,
                                           {.checkpoint = checkpoint, .initial = noisy_weights}));
  one.make_buffers(one.engine_->state_plan());
  for (std::uint32_t param = 0; param < config.model.params.size(); ++param)
    EBB_TRY(one.engine_->bind_weights(param, one.weights_of(param)));
  EBB_TRY(one.engine_->install_weights());
  return one;
}

Result<RankEngine> RankEngine::open_bound(World& world, libmuon::Communicator& ranks,
                                          const libmuon::EngineConfig& config, const Value& value,
                                          libmuon::Start start) {
  RankEngine one;
  one.config_ = config;
  one.rank_ = ranks.rank();
  EBB_TRY_ASSIGN(const auto plan,
                 libmuon::StatePlan::make(config.model, config.partition, config.tile_bytes,
                                          one.rank_, config.chunk_bytes, config.dtypes));
  one.make_buffers(plan);
  one.edit_weights(plan, [&](std::uint32_t param, std::uint64_t element, float& weight) {
    weight = value(param, element);
  });
  std::vector<libswap::Buffer> bound;
  for (std::uint32_t param = 0; param < config.model.params.size(); ++param)
    bound.push_back(one.weights_of(param));
  start.weights = bound;
  EBB_TRY_ASSIGN(one.engine_, Engine::open(config, ranks, world.io(), world.swap(), start));
  return one;
}

void RankEngine::make_buffers(const libmuon::StatePlan& plan) {
  const std::size_t params = config_.model.params.size();
  weights_ = std::make_unique<std::vector<std::vector<float>>>(params);
  gradients_.resize(params);
  const bool on_device = config_.weights_on == libmuon::Side::device;
  for (std::uint32_t param = 0; param < params; ++param) {
    auto& weights = (*weights_)[param];
    weights.resize(plan.weights().local_elems(param, rank_));
    if (config_.gradients_on == libmuon::Side::device)
      device_gradients_.emplace_back(&config_.accelerator->device(),
                                     plan.gradients().local_elems(param, rank_));
    const DType dtype = config_.model.params[param].weight;
    apart_.push_back(apart_weights_.size());
    if (on_device || dtype != DType::f32)
      apart_weights_.emplace_back(on_device ? &config_.accelerator->device() : nullptr,
                                  weights.size(), dtype);
  }
}

libswap::Buffer RankEngine::weights_of(std::uint32_t param) {
  const bool here =
      config_.weights_on == libmuon::Side::host && config_.model.params[param].weight == DType::f32;
  return here ? libswap::buffer_of(std::span((*weights_)[param]))
              : apart_weights_[apart_[param]].buffer();
}

void RankEngine::edit_weights(const Edit& edit) { edit_weights(engine_->state_plan(), edit); }

void RankEngine::edit_weights(const libmuon::StatePlan& plan, const Edit& edit) {
  for (std::uint32_t param = 0; param < config_.model.params.size(); ++param) {
    const libswap::Buffer bound = weights_of(param);
    const bool here = bound.device == nullptr && bound.dtype == DType::f32;
    TrainerBuffer* const apart = here ? nullptr : &apart_weights_[apart_[param]];
    if (apart != nullptr) apart->fetch();
    const std::span<float> values = here ? bound.floats() : apart->values();
    for_elements(plan.weights(), param, rank_, [&](std::uint64_t element, std::uint64_t place) {
      edit(param, element, values[place]);
    });
    if (apart != nullptr) apart->send().wait();
  }
}

Result<std::map<std::string, std::vector<float>>> RankEngine::stored() {
  EBB_TRY(commit());
  EBB_TRY_ASSIGN(const auto pinned, engine_->open_export());
  EBB_TRY_ASSIGN(const auto checkpoint, pinned.describe());
  return tensors_of(*checkpoint);
}

void RankEngine::make_gradients(std::uint64_t step, float scale) {
  for (std::uint32_t param = 0; param < gradients_.size(); ++param) {
    const FlatRange held = engine_->state_plan().gradients().held(param, rank_);
    gradients_[param].resize(held.count);
    for (std::uint64_t i = 0; i < held.count; ++i)
      gradients_[param][i] = scale * noise(param, step, held.first + i);
  }
}

Result<> RankEngine::hand_in(std::uint64_t step, float scale) {
  make_gradients(step, scale);
  for (std::uint32_t param = 0; param < gradients_.size(); ++param) {
    if (device_gradients_.empty()) {
      EBB_TRY(engine_->gradient_ready(param, gradients_[param]));
      continue;
    }
    TrainerBuffer& there = device_gradients_[param];
    std::ranges::copy(gradients_[param], there.values().begin());
    EBB_TRY(engine_->gradient_ready(param, there.buffer(), there.send()));
  }
  return {};
}

Result<libmuon::StepResult> RankEngine::step(const libmuon::StepArgs& args) {
  return engine_->step(args);
}

Result<std::uint64_t> RankEngine::commit() {
  EBB_TRY_ASSIGN(const bool begun, engine_->snapshot());
  if (!begun) return Error{Code::busy, "no snapshot was begun"};
  return engine_->wait_snapshot();
}

std::vector<float> RankEngine::flat_weights() {
  for (std::uint32_t param = 0; param < apart_.size(); ++param)
    if (weights_of(param).data != static_cast<const void*>((*weights_)[param].data()))
      std::ranges::copy(apart_weights_[apart_[param]].fetch(), (*weights_)[param].begin());
  std::vector<float> all;
  for (const auto& weights : *weights_) all.insert(all.end(), weights.begin(), weights.end());
  return all;
}

std::map<std::string, std::vector<float>> tensors_of(const Checkpoint& checkpoint) {
  std::map<std::string, std::vector<float>> all;
  for (const TensorEntry& tensor : checkpoint.catalog().tensors) {
    std::vector<float> values(formats::volume(tensor.shape));
    ByteVector stored(values.size() * bytes_of(tensor.dtype));
    const auto read = formats::read_box(checkpoint, tensor, formats::whole(tensor.shape), stored);
    EXPECT_TRUE(read) << read.error().message;
    formats::cast_floats(tensor.dtype, stored, DType::f32,
                         std::as_writable_bytes(std::span(values)));
    all.emplace(tensor.name + " " + tensor.state, std::move(values));
  }
  return all;
}

std::map<std::string, std::vector<float>> tensors_of(const std::filesystem::path& directory) {
  auto tree = libswap::open_tree(directory);
  EXPECT_TRUE(tree);
  if (!tree) return {};
  const auto checkpoint = formats::describe(std::move(*tree));
  EXPECT_TRUE(checkpoint) << checkpoint.error().message;
  return checkpoint ? tensors_of(**checkpoint) : std::map<std::string, std::vector<float>>();
}

}  // namespace ebb::test
