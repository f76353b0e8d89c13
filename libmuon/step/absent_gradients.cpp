#include "ebb/libmuon/step/absent_gradients.h"

#include <algorithm>
#include <numeric>

#include "ebb/libswap/store/alike.h"

namespace ebb::libmuon {

namespace {

// Of a sum over ranks: those that say untouched are counted in the lower half, zero in the upper.
constexpr std::int64_t kZero = std::int64_t{1} << 32;

}  // namespace

AbsentGradients::AbsentGradients(const StatePlan& plan)
    : plan_(&plan), said_(plan.params(), Answer::has) {}

void AbsentGradients::say(std::uint32_t param, WithoutGradient how) {
  const libswap::MutexLock lock(mutex_);
  said_[param] = how == WithoutGradient::zero ? Answer::zero : Answer::untouched;
  any_said_ = true;
}

AbsentGradients::Answer AbsentGradients::said(std::uint32_t param) const {
  const libswap::MutexLock lock(mutex_);
  return said_[param];
}

bool AbsentGradients::any_said() const {
  const libswap::MutexLock lock(mutex_);
  return any_said_;
}

void AbsentGradients::forget() {
  const libswap::MutexLock lock(mutex_);
  said_.assign(said_.size(), Answer::has);
  any_said_ = false;
  agreed_.clear();
}

bool AbsentGradients::any_untouched() const {
  return std::ranges::find(agreed_, Answer::untouched) != agreed_.end();
}

Result<std::vector<AbsentGradients::Answer>> AbsentGradients::ask(
    Communicator& ranks, std::span<const std::uint32_t> params) const {
  std::vector<std::int64_t> sums;
  for (const std::uint32_t param : params) {
    const Answer mine = said(param);
    sums.push_back(mine == Answer::has ? 0 : mine == Answer::zero ? kZero : 1);
  }
  EBB_TRY(ranks.sum(sums));
  std::vector<Answer> answers;
  for (std::size_t i = 0; i < params.size(); ++i) {
    const auto all = std::int64_t{plan_->gradients().ranks(params[i])};
    answers.push_back(sums[i] == 0             ? Answer::has
                      : sums[i] == all         ? Answer::untouched
                      : sums[i] == all * kZero ? Answer::zero
                                               : Answer::disputed);
  }
  return answers;
}

Result<> AbsentGradients::agree(Communicator& ranks, const ModelSpec& model) {
  std::vector<std::uint32_t> params(plan_->params());
  std::iota(params.begin(), params.end(), 0u);
  EBB_TRY_ASSIGN(agreed_, ask(ranks, params));
  const auto disputed = std::ranges::find(agreed_, Answer::disputed);
  if (disputed == agreed_.end()) return {};
  const auto param = static_cast<std::uint32_t>(disputed - agreed_.begin());
  agree_on_none();
  const libswap::Setting setting{"the gradient of " + model.params[param].name, text_of(param)};
  return libswap::same_everywhere(ranks, {&setting, 1});
}

std::string AbsentGradients::text_of(std::uint32_t param) const {
  if (!plan_->here(param)) return "not held";
  const Answer mine = said(param);
  if (mine == Answer::has) return "handed in";
  return mine == Answer::zero ? "none, as zero" : "none, untouched";
}

Result<std::set<std::uint32_t>> AbsentGradients::gradients_said(
    Communicator& ranks, std::span<const Transit> planned) const {
  std::set<std::uint32_t> all;
  for (const Transit& transit : planned) all.insert(transit.param);
  const std::vector<std::uint32_t> params(all.begin(), all.end());
  EBB_TRY_ASSIGN(const std::vector<Answer> answers, ask(ranks, params));
  for (std::size_t i = 0; i < params.size(); ++i)
    if (answers[i] != Answer::has) all.erase(params[i]);
  return all;
}

}  // namespace ebb::libmuon
