// A model that tests of ebb.h train: three matrices and a vector, on ranks that have all of it.
#pragma once

#include <string>
#include <vector>

#include "bindings/c/ebb.h"

namespace ebb::c {

inline std::string last_message() { return ebb_last_error()->message; }

struct SmallModel {
  static constexpr std::uint32_t kParams = 4;
  const std::uint64_t matrix[2] = {24, 16}, vector[1] = {40};
  const ebb_setting settings[2] = {{"lr", "0.05"}, {"weight_decay", "0.1"}};
  ebb_group groups[2] = {{sizeof(ebb_group), "muon", nullptr, settings, 2},
                         {sizeof(ebb_group), "adamw", nullptr, settings, 1}};
  ebb_param params[kParams] = {};
  ebb_layout layout = {};  // of gradients and weights
  ebb_model model = {};
  std::vector<std::vector<float>> weights, gradients;

  explicit SmallModel(std::uint32_t world = 1) {
    static constexpr const char* kNames[kParams] = {"a", "b", "c", "bias"};
    for (std::uint32_t i = 0; i < kParams; ++i) {
      const bool last = i + 1 == kParams;
      params[i].size = sizeof(ebb_param);
      params[i].name = kNames[i];
      params[i].shape = last ? vector : matrix;
      params[i].ndim = last ? 1 : 2;
      params[i].group = last ? 1 : 0;
      weights.emplace_back(last ? 40 : 24 * 16);
      for (std::size_t k = 0; k < weights[i].size(); ++k)
        weights[i][k] = static_cast<float>((k * 7 + i) % 13) / 13 - 0.5f;
    }
    gradients = weights;
    model.size = sizeof(model);
    model.params = params;
    model.groups = groups;
    model.param_count = kParams;
    model.group_count = 2;
    layout = {sizeof(ebb_layout), EBB_REPLICATED, world, 1, 1, nullptr, nullptr, 0, 0};
    model.gradients = model.weights = &layout;
    model.budget_bytes = 1 << 20;
    model.tile_bytes = 4096;
  }
  SmallModel(const SmallModel&) = delete;
  SmallModel& operator=(const SmallModel&) = delete;

  static std::vector<ebb_buffer> buffers(std::vector<std::vector<float>>& of) {
    std::vector<ebb_buffer> all;
    for (auto& one : of) all.push_back({one.data(), one.size(), EBB_F32, -1, nullptr});
    return all;
  }
  // Those of a step, whoever makes it.
  void set_gradients(std::uint64_t step) {
    for (std::uint32_t i = 0; i < kParams; ++i)
      for (std::size_t k = 0; k < gradients[i].size(); ++k)
        gradients[i][k] = static_cast<float>((k * 31 + i * 17 + step * 5) % 29) / 29 - 0.4f;
  }
  // Allocates nothing, but what ebb_engine_open() does.
  ebb_status open(ebb_ranks* ranks, const std::string& directory, ebb_engine** engine) {
    ebb_buffer places[kParams];
    for (std::uint32_t i = 0; i < kParams; ++i)
      places[i] = {weights[i].data(), weights[i].size(), EBB_F32, -1, nullptr};
    ebb_start start = {};
    start.size = sizeof(start);
    start.directory = directory.c_str();
    start.weights = places;
    return ebb_engine_open(&model, ranks, &start, engine);
  }
  ebb_status step(ebb_engine* engine, std::uint64_t number, ebb_step_result* result = nullptr) {
    static constexpr std::uint32_t kAll[kParams] = {0, 1, 2, 3};
    set_gradients(number);
    const auto given = buffers(gradients);
    const ebb_status taken = ebb_engine_gradients(engine, kAll, given.data(), nullptr, kParams);
    return taken == EBB_DONE ? ebb_engine_step(engine, nullptr, result) : taken;
  }
};

}  // namespace ebb::c
