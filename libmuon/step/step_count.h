// StepCount: how many steps the state has taken, and each parameter: one that a step left untouched
// has not taken it.
//
// Threading: changed by the thread that ends or resumes a step, while none is under way; read by
// the threads of a step, to which Flow::begin() publishes it.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "ebb/libmuon/step/absent_gradients.h"

namespace ebb::libmuon {

class StepCount {
 public:
  explicit StepCount(std::span<const ParamSpec> params) : params_(params) {}  // borrowed

  std::uint64_t now() const { return step_; }
  std::uint64_t taken(std::uint32_t param) const;
  // How many steps a parameter has taken beyond now(); empty where each has taken as many.
  const std::vector<std::int64_t>& ahead() const { return ahead_; }

  // A step was made, by all that it did not leave untouched.
  void count(const AbsentGradients& absent);
  // The state is at `step`; of parameters that have taken more or fewer, `taken` says how many.
  void set(std::uint64_t step, const std::map<std::string, std::int64_t>& taken);
  // A parameter has taken so many.
  void set_taken(std::uint32_t param, std::uint64_t taken);

 private:
  const std::span<const ParamSpec> params_;
  std::uint64_t step_ = 0;
  std::vector<std::int64_t> ahead_;
};

}  // namespace ebb::libmuon
