#include "tests/bench/stepped_engine.h"

#include <algorithm>
#include <iostream>

namespace ebb::bench {
namespace {

constexpr std::uint64_t kOneForAll = 7;

std::vector<float> made_numbers(std::uint64_t param, std::uint64_t elems) {
  std::vector<float> numbers(elems);
  for (std::uint64_t i = 0; i < elems; ++i) numbers[i] = made_number(param, i);
  return numbers;
}

}  // namespace

float made_number(std::uint64_t param, std::uint64_t i) {
  const auto mixed = static_cast<std::uint32_t>((param + 1) * 2654435761u + i * 2246822519u);
  return static_cast<float>(mixed >> 8) * 0x1p-24f - 0.5f;
}

Result<std::unique_ptr<SteppedEngine>> SteppedEngine::open(const libmuon::EngineConfig& config,
                                                           const std::filesystem::path& directory,
                                                           Gradients gradients) {
  auto stepped = std::make_unique<SteppedEngine>();
  EBB_TRY_ASSIGN(auto backend, libswap::open_backend(libswap::BackendChoice::automatic));
  EBB_TRY_ASSIGN(stepped->io_, libswap::IoQueue::start(std::move(backend.backend), {}));
  EBB_TRY_ASSIGN(stepped->swap_, libswap::SwapDirectory::open(*stepped->io_, directory));
  const auto initial = [](std::uint32_t param, FlatRange range, std::span<float> into) {
    for (std::uint64_t i = 0; i < into.size(); ++i) into[i] = made_number(param, range.first + i);
  };
  EBB_TRY_ASSIGN(stepped->engine_,
                 libmuon::Engine::open(config, *stepped->ranks_.front(), *stepped->io_,
                                       *stepped->swap_, {.initial = initial}));
  EBB_TRY(stepped->bind(config, gradients));
  std::cerr << stepped->engine_->origin() << '\n';
  return stepped;
}

Result<> SteppedEngine::bind(const libmuon::EngineConfig& config, Gradients gradients) {
  std::uint64_t most = 0;
  for (const auto& param : config.model.params) {
    const std::uint64_t elems = formats::volume(param.shape);
    weights_.emplace_back(elems);
    most = std::max(most, elems);
    if (gradients == Gradients::one_each)
      gradients_.push_back(made_numbers(config.model.params.size() + gradients_.size(), elems));
  }
  if (gradients == Gradients::one_for_all) gradients_.push_back(made_numbers(kOneForAll, most));
  for (std::uint32_t i = 0; i < weights_.size(); ++i)
    EBB_TRY(engine_->bind_weights(i, weights_[i]));
  return engine_->install_weights();
}

Result<> SteppedEngine::hand_in_gradients() {
  for (std::uint32_t i = 0; i < weights_.size(); ++i) {
    const std::vector<float>& gradient = gradients_[gradients_.size() == 1 ? 0 : i];
    EBB_TRY(engine_->gradient_ready(i, std::span(gradient).first(weights_[i].size())));
  }
  return {};
}

}  // namespace ebb::bench
