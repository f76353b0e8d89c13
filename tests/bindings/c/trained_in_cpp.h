// What a trainer in C++ makes of the model that tests of ebb.h train.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "ebb/libmuon/step/engine.h"
#include "tests/bindings/c/small_model.h"

namespace ebb::c {

using Weights = std::vector<std::vector<float>>;

// Those behind so many steps; null: computed by the host.
inline Weights trained_in_cpp(const std::string& directory, std::uint64_t steps,
                              libmuon::Accelerator* accelerator = nullptr) {
  SmallModel model;
  libmuon::EngineConfig config;
  auto muon = libmuon::MuonSpec::keller();
  muon.lr = 0.05;
  muon.weight_decay = 0.1;
  libmuon::AdamSpec adam;
  adam.lr = 0.05;
  config.model.groups = {muon, adam};
  for (const ebb_param& param : model.params)
    config.model.params.push_back(
        {param.name, Shape(param.shape, param.shape + param.ndim), param.group});
  config.budget_bytes = 1 << 20;
  config.tile_bytes = 4096;
  config.accelerator = accelerator;
  auto disk = libswap::open_backend(libswap::BackendChoice::automatic);
  const auto io = *libswap::IoQueue::start(std::move(disk->backend), {});
  const auto swap = *libswap::SwapDirectory::open(*io, directory);
  const auto ranks = libmuon::make_thread_ranks(1);
  std::vector<libswap::Buffer> places;
  for (auto& one : model.weights) places.push_back(libswap::buffer_of(std::span(one)));
  libmuon::Start start;
  start.weights = places;
  auto engine = libmuon::Engine::open(config, *ranks[0], *io, *swap, start);
  EXPECT_TRUE(engine);
  for (std::uint64_t step = 0; step < steps; ++step) {
    model.set_gradients(step);
    for (std::uint32_t i = 0; i < SmallModel::kParams; ++i)
      EXPECT_TRUE((*engine)->gradient_ready(i, model.gradients[i]));
    EXPECT_TRUE((*engine)->step({}));
  }
  return model.weights;
}

}  // namespace ebb::c
