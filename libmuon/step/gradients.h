// Gradients: what a trainer has handed in of the coming step's gradients, and of which parameters
// it said that they have none.
//
// Owns the sums of HandIn::added; borrows the buffers that are handed in, until forget().
// Threading: take(), add() and take_none() may be called from any thread, several at once, but not
// beside what the driving thread calls (Entry sees to that). of(), wait_for() and absent() are for
// the threads of a step, too.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "ebb/libmuon/step/absent_gradients.h"
#include "ebb/libmuon/step/computing.h"
#include "ebb/libmuon/step/early.h"
#include "ebb/libmuon/step/gradient_sums.h"
#include "ebb/libmuon/step/step_count.h"
#include "ebb/libswap/sys/mutex.h"

namespace ebb::libmuon {

class Flow;

class Gradients {
 public:
  // Allocates the sums. All are borrowed.
  static Result<std::unique_ptr<Gradients>> make(const Setup& setup, const Computing& computing,
                                                 const StepCount& steps);

  // Takes a gradient, or the last one of several, as Engine::gradient_ready() says. `flow` is told
  // what may travel early.
  Result<> take(std::uint32_t param, libswap::Buffer my_pieces, libswap::Event ready, Flow& flow);
  // Adds one of several, as Engine::add_gradient() says. REQUIRES: may_add().
  Result<libswap::Event> add(std::uint32_t param, const libswap::Buffer& my_pieces,
                             const libswap::Event& ready);
  Result<> may_add() const;
  // Notes that the parameter has none, as Engine::no_gradient() says.
  Result<> take_none(std::uint32_t param, WithoutGradient how, Flow& flow);

  // Whether a gradient was handed in, or one of several, or the parameter was said to have none.
  bool has(std::uint32_t param) const;
  // Finds this rank's part of a range, where the trainer holds it.
  libswap::Buffer of(const Transit& transit) const;
  // Waits until the gradient is there.
  void wait_for(std::uint32_t param) const;
  // Says which parameters have none in the present step, as the ranks have agreed.
  const AbsentGradients& absent() const { return absent_; }

  // [C] Agrees on what is absent, where anything is. Code::usage where ranks say different things.
  Result<> agree_on_absent();
  // Looks at all gradients, where they lie, once they are there.
  Look look() const;
  // Forgets what was handed in and said: the next step's gradients are awaited.
  void forget();

 private:
  // A parameter's gradient, which is there once the event has passed.
  struct HandedIn {
    libswap::Buffer buffer;
    libswap::Event ready;
  };
  Gradients(const Setup& setup, const Computing& computing, const StepCount& steps,
            std::optional<GradientSums> sums);
  Result<> may_hand_in(std::uint32_t param) const EBB_REQUIRES(handing_in_);
  Result<> may_hand_in(std::uint32_t param, const libswap::Buffer& my_pieces) const
      EBB_REQUIRES(handing_in_);
  void handed_in(std::uint32_t param, HandedIn what, Flow& flow) EBB_REQUIRES(handing_in_);
  void set(std::uint32_t param, HandedIn what);
  HandedIn get(std::uint32_t param) const;

  // Constant after construction; the room's content is the driving thread's.
  const Setup& setup_;
  const Computing& computing_;
  const StepCount& steps_;

  // Synchronises itself.
  AbsentGradients absent_;

  // Guarded by handing_in_: one gradient is handed in at a time, its sum is made meanwhile.
  mutable libswap::Mutex handing_in_;
  std::vector<std::uint8_t> given_ EBB_GUARDED_BY(handing_in_);  // by parameter: 1 if it is whole
  std::optional<GradientSums> sums_ EBB_GUARDED_BY(handing_in_);
  EarlyGradients early_ EBB_GUARDED_BY(handing_in_);

  // Guarded by mutex_: early gradients travel while others are handed in.
  mutable libswap::Mutex mutex_;
  std::vector<HandedIn> handed_in_ EBB_GUARDED_BY(mutex_);  // by parameter
};

// Answers Code::usage where `how` is no way to do without a gradient.
Result<> check_without(WithoutGradient how);

}  // namespace ebb::libmuon
