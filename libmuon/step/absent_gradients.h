// AbsentGradients: which parameters have no gradient in a step, and what the step does with them:
// as the trainer said on this rank, and as the ranks that hold them have agreed. What has no
// gradient does not travel to its owner; what is untouched does not travel back either.
//
// Threading: what is said synchronises itself: some is asked about while more is said. What is
// agreed changes on the thread that drives, while no step is under way; Flow::begin() publishes it.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <vector>

#include "ebb/libmuon/comm/communicator.h"
#include "ebb/libmuon/plan/state_plan.h"
#include "ebb/libswap/sys/mutex.h"

namespace ebb::libmuon {

class AbsentGradients {
 public:
  // Borrows the plan.
  explicit AbsentGradients(const StatePlan& plan);

  // Says it of the coming step, for this rank: each parameter at most once.
  void say(std::uint32_t param, WithoutGradient how);
  bool any_said() const;

  // Collective. Until the next agreement the answers below are of this step. Code::usage names the
  // first parameter of which its ranks do not say the same, and who says what.
  Result<> agree(Communicator& ranks, const ModelSpec& model);
  // All parameters have a gradient, as far as the answers go.
  void agree_on_none() { agreed_.clear(); }
  // What was said, and agreed, is forgotten.
  void forget();

  bool has_gradient(std::uint32_t param) const { return answer(param) == Answer::has; }
  bool untouched(std::uint32_t param) const { return answer(param) == Answer::untouched; }
  bool any_untouched() const;

  // Collective, before the step has agreed: of parameters in `planned`, those of whose gradient
  // every rank that holds one has it. What is disputed stays where it is.
  Result<std::set<std::uint32_t>> gradients_said(Communicator& ranks,
                                                 std::span<const Transit> planned) const;

 private:
  enum class Answer : std::uint8_t { has, untouched, zero, disputed };
  Answer answer(std::uint32_t param) const {
    return agreed_.empty() ? Answer::has : agreed_[param];
  }
  Answer said(std::uint32_t param) const;
  // Asks all who hold these; collective.
  Result<std::vector<Answer>> ask(Communicator& ranks, std::span<const std::uint32_t> params) const;
  std::string text_of(std::uint32_t param) const;

  // Constant after construction.
  const StatePlan* const plan_;

  // Guarded by mutex_.
  mutable libswap::Mutex mutex_;
  std::vector<Answer> said_ EBB_GUARDED_BY(mutex_);  // by parameter
  bool any_said_ EBB_GUARDED_BY(mutex_) = false;

  // Published by Flow::begin().
  std::vector<Answer> agreed_;  // by parameter; empty: all have one
};

}  // namespace ebb::libmuon
