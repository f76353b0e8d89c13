// A state of some parameters, or several, as a rank reads or writes them by their names.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "ebb/libmuon/step/engine.h"
#include "tests/libmuon/support/elements.h"

namespace ebb::test {

class ByName {
 public:
  // Borrows the plan.
  ByName(const libmuon::StatePlan& plan, const std::vector<std::uint32_t>& params)
      : plan_(plan), values_(plan.params()) {
    for (const std::uint32_t param : params) {
      values_[param].resize(plan.weights().local_elems(param, plan.rank()));
      buffers_.push_back({param, libswap::buffer_of(std::span(values_[param]))});
    }
  }
  std::span<const libmuon::StateBuffer> buffers() const { return buffers_; }
  template <typename Take>  // take(parameter, element, value)
  void for_all(const Take& take) {
    for (const auto& [param, pieces] : buffers_)
      for_elements(plan_.weights(), param, plan_.rank(),
                   [&](std::uint64_t element, std::uint64_t place) {
                     take(param, element, values_[param][place]);
                   });
  }

 private:
  const libmuon::StatePlan& plan_;
  std::vector<std::vector<float>> values_;  // by parameter
  std::vector<libmuon::StateBuffer> buffers_;
};

class AllByName {
 public:
  AllByName(const libmuon::StatePlan& plan, std::vector<std::string> states,
            const std::vector<std::uint32_t>& params)
      : states_(std::move(states)) {
    for (std::size_t i = 0; i < states_.size(); ++i) values_.emplace_back(plan, params);
  }
  std::vector<libmuon::StateBuffers> buffers() const {
    std::vector<libmuon::StateBuffers> all;
    for (std::size_t i = 0; i < states_.size(); ++i)
      all.push_back({states_[i], values_[i].buffers()});
    return all;
  }
  template <typename Take>  // take(state, parameter, element, value)
  void for_all(const Take& take) {
    for (std::size_t i = 0; i < states_.size(); ++i)
      values_[i].for_all([&](std::uint32_t param, std::uint64_t element, float& value) {
        take(states_[i], param, element, value);
      });
  }

 private:
  std::vector<std::string> states_;
  std::vector<ByName> values_;
};

}  // namespace ebb::test
