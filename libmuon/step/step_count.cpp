#include "ebb/libmuon/step/step_count.h"

#include <algorithm>
#include <utility>

namespace ebb::libmuon {

std::uint64_t StepCount::taken(std::uint32_t param) const {
  if (ahead_.empty()) return step_;
  return static_cast<std::uint64_t>(static_cast<std::int64_t>(step_) + ahead_[param]);
}

void StepCount::count(const AbsentGradients& absent) {
  ++step_;
  if (!absent.any_untouched()) return;
  ahead_.resize(params_.size(), 0);
  for (std::uint32_t param = 0; param < ahead_.size(); ++param)
    if (absent.untouched(param)) --ahead_[param];
}

void StepCount::set_taken(std::uint32_t param, std::uint64_t taken) {
  if (this->taken(param) == taken) return;
  ahead_.resize(params_.size(), 0);
  ahead_[param] = static_cast<std::int64_t>(taken) - static_cast<std::int64_t>(step_);
}

void StepCount::set(std::uint64_t step, const std::map<std::string, std::int64_t>& taken) {
  step_ = step;
  std::vector<std::int64_t> ahead;
  for (const ParamSpec& param : params_) {
    const auto found = taken.find(param.name);
    ahead.push_back(found == taken.end() ? 0 : found->second - static_cast<std::int64_t>(step));
  }
  const bool all_alike = std::ranges::all_of(ahead, [](std::int64_t steps) { return steps == 0; });
  ahead_ = all_alike ? std::vector<std::int64_t>() : std::move(ahead);
}

}  // namespace ebb::libmuon
