#include "tests/libmuon/support/world.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "ebb/formats/core/float_cast.h"
#include "ebb/formats/elements/box_reader.h"
#include "ebb/formats/registry.h"
#include "ebb/libswap/tree/file_tree.h"

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
  EBB_TRY_ASSIGN(one.engine_, Engine::open(config, ranks, io, swap, noisy_weights, checkpoint));
  const std::size_t params = config.model.params.size();
  one.weights_ = std::make_unique<std::vector<std::vector<float>>>(params);
  one.gradients_.resize(params);
  const libmuon::StatePlan& plan = one.engine_->state_plan();
  for (std::uint32_t param = 0; param < params; ++param) {
    auto& weights = (*one.weights_)[param];
    weights.resize(plan.weights().local_elems(param, one.rank_));
    if (config.gradients_on == libmuon::Side::device)
      one.device_gradients_.emplace_back(&config.accelerator->device(),
                                         plan.gradients().local_elems(param, one.rank_));
    const bool on_device = config.weights_on == libmuon::Side::device;
    const DType dtype = config.model.params[param].weight;
    if (!on_device && dtype == DType::f32) {
      EBB_TRY(one.engine_->bind_weights(param, weights));
      continue;
    }
    auto& there = one.apart_weights_.emplace_back(
        on_device ? &config.accelerator->device() : nullptr, weights.size(), dtype);
    EBB_TRY(one.engine_->bind_weights(param, there.buffer()));
  }
  EBB_TRY(one.engine_->install_weights());
  return one;
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
  for (std::size_t param = 0; param < apart_weights_.size(); ++param)
    std::ranges::copy(apart_weights_[param].fetch(), (*weights_)[param].begin());
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
