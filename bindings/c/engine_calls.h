// What the functions of ebb.h that take an engine do around their bodies.
#pragma once

#include <exception>

#include "bindings/c/guarded.h"
#include "bindings/c/objects.h"

namespace ebb::c {

// An exception that passes by leaves the engine, and perhaps the other ranks, in the middle of
// something: it is over, on all of them.
class Passage {
 public:
  explicit Passage(EngineObject& object) : object_(object) {}
  ~Passage() {
    if (std::uncaught_exceptions() <= before_) return;
    object_.broken = true;
    object_.ranks->ranks->abort();
  }
  Passage(const Passage&) = delete;
  Passage& operator=(const Passage&) = delete;

 private:
  EngineObject& object_;
  const int before_ = std::uncaught_exceptions();
};

// What a call does with the engine that a handle leads to, from any thread.
template <typename Body>
ebb_status beside_others(ebb_engine* handle, const Body& body) noexcept {
  return guarded([&]() -> Result<> {
    EBB_TRY_ASSIGN(const auto object, engines().find(handle));
    if (object->broken)
      return Error{Code::state, "this engine is over: a call ran out of memory in the middle",
                   "close it and open it again: it goes on at its last snapshot"};
    const Passage passage(*object);
    return body(*object);
  });
}
template <typename Body>
ebb_status with_engine(ebb_engine* handle, const Body& body) noexcept {
  return beside_others(handle, [&](EngineObject& object) -> Result<> {
    EBB_TRY_ASSIGN(const OnlyCall call, OnlyCall::enter(object.in_call, "engine"));
    return body(object);
  });
}
template <typename Body>
ebb_status collectively(ebb_engine* handle, const Body& body) noexcept {
  return with_engine(handle, [&](EngineObject& object) -> Result<> {
    EBB_TRY_ASSIGN(const OnlyCall call, collective_call(*object.ranks));
    return body(object);
  });
}

}  // namespace ebb::c
