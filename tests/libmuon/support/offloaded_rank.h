// One rank of a trainer on a device whose optimizer is the host: backward writes gradients there,
// forward reads weights. The engine has neither; the trainer copies a parameter when backward has
// made it, and back when it is new, and counts what it copies.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "ebb/libswap/device/device.h"
#include "tests/libmuon/support/failing_world.h"

namespace ebb::test {

class OffloadedRank {
 public:
  // Work of the device that writes such numbers to `to`.
  using Compute = std::function<libswap::Event(const libswap::Buffer& to,
                                               std::function<void(std::span<float>)> values)>;

  // All but the configuration are borrowed.
  static Result<OffloadedRank> open(World& world, libmuon::Communicator& ranks,
                                    const libmuon::EngineConfig& config, libswap::Device& device,
                                    Compute compute) {
    OffloadedRank one(device, std::move(compute));
    EBB_TRY_ASSIGN(one.engine_, libmuon::Engine::open(config, ranks, world.io(), world.swap(),
                                                      {.initial = noisy_weights}));
    const libmuon::StatePlan& plan = one.engine_->state_plan();
    one.params_.resize(config.model.params.size());
    for (std::uint32_t param = 0; param < one.params_.size(); ++param) {
      Param& mine = one.params_[param];
      mine.held = plan.gradients().held(param, ranks.rank());
      mine.gradient.resize(mine.held.count);
      mine.weight.resize(plan.weights().local_elems(param, ranks.rank()));
      EBB_TRY_ASSIGN(mine.device_gradient, device.allocate(bytes_of(mine.gradient)));
      EBB_TRY_ASSIGN(mine.device_weight, device.allocate(bytes_of(mine.weight)));
      EBB_TRY(one.engine_->bind_weights(param, mine.weight));
    }
    EBB_TRY(one.engine_->install_weights());
    return one;
  }

  Result<> step() {
    const std::uint64_t number = engine_->step_count() + 1;
    for (std::uint32_t param = 0; param < params_.size(); ++param) {
      Param& mine = params_[param];
      const libswap::Buffer here = libswap::buffer_of(std::span(mine.gradient));
      const libswap::Event made =
          compute_(floats(mine.device_gradient), [param, number, first = mine.held.first](auto to) {
            for (std::uint64_t i = 0; i < to.size(); ++i) to[i] = noise(param, number, first + i);
          });
      down_ += here.size();
      EBB_TRY(engine_->gradient_ready(param, here,
                                      device_.copy(floats(mine.device_gradient), here, made)));
    }
    EBB_TRY(engine_->begin_step({.max_norm = 3}));
    std::vector<libswap::Event> up;
    for (std::uint32_t param = 0; param < params_.size(); ++param) {
      Param& mine = params_[param];
      EBB_TRY(engine_->weights_ready(param));
      const libswap::Buffer here = libswap::buffer_of(std::span(mine.weight));
      up_ += here.size();
      up.push_back(device_.copy(here, floats(mine.device_weight), {}));
    }
    for (const libswap::Event& one : up) one.wait();
    EBB_TRY(engine_->wait_step());
    return device_.status();
  }

  // As the device has them.
  std::vector<float> weights() const {
    std::vector<float> all;
    for (const Param& mine : params_) {
      std::vector<float> here(mine.weight.size());
      device_.copy(floats(mine.device_weight), libswap::buffer_of(std::span(here)), {}).wait();
      all.insert(all.end(), here.begin(), here.end());
    }
    return all;
  }
  std::uint64_t gradient_bytes() const { return sum(&Param::gradient); }
  std::uint64_t weight_bytes() const { return sum(&Param::weight); }
  std::uint64_t down() const { return down_; }  // of all steps; bytes
  std::uint64_t up() const { return up_; }

 private:
  struct Param {
    FlatRange held;
    libswap::DeviceMemory device_gradient, device_weight;
    std::vector<float> gradient, weight;
  };
  OffloadedRank(libswap::Device& device, Compute compute)
      : device_(device), compute_(std::move(compute)) {}

  static std::uint64_t bytes_of(const std::vector<float>& values) {
    return values.size() * sizeof(float);
  }
  static libswap::Buffer floats(const libswap::DeviceMemory& memory) {
    return memory.buffer().as(DType::f32);
  }
  std::uint64_t sum(std::vector<float> Param::* which) const {
    std::uint64_t bytes = 0;
    for (const Param& mine : params_) bytes += bytes_of(mine.*which);
    return bytes;
  }

  libswap::Device& device_;
  Compute compute_;
  std::unique_ptr<libmuon::Engine> engine_;
  std::vector<Param> params_;
  std::uint64_t down_ = 0, up_ = 0;
};

}  // namespace ebb::test
