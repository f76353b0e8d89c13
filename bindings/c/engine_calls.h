// What the functions of ebb.h that take an engine do around their bodies.
#pragma once

#include "bindings/c/guarded.h"
#include "bindings/c/objects.h"

namespace ebb::c {

// body(object), unless an exception has left a call of it in the middle. Inside of OnlyCall:
// whoever comes next is not to find it whole when this one was left so.
template <typename Body>
Result<> while_whole(EngineObject& object, const Body& body) {
  if (object.broken)
    return Error{Code::state, "this engine is over: a call ran out of memory in the middle",
                 "close it and open it again: it goes on at its last snapshot"};
  const Passage passage(*object.ranks, &object.broken);
  return body(object);
}

// What a call does with the engine that a handle leads to, from any thread.
template <typename Body>
ebb_status beside_others(ebb_engine* handle, const Body& body) noexcept {
  return guarded([&]() -> Result<> {
    EBB_TRY_ASSIGN(const auto object, engines().find(handle));
    return while_whole(*object, body);
  });
}
template <typename Body>
ebb_status with_engine(ebb_engine* handle, const Body& body) noexcept {
  return guarded([&]() -> Result<> {
    EBB_TRY_ASSIGN(const auto object, engines().find(handle));
    EBB_TRY_ASSIGN(const OnlyCall call, OnlyCall::enter(object->in_call, "engine"));
    return while_whole(*object, body);
  });
}
template <typename Body>
ebb_status collectively(ebb_engine* handle, const Body& body) noexcept {
  return guarded([&]() -> Result<> {
    EBB_TRY_ASSIGN(const auto object, engines().find(handle));
    EBB_TRY_ASSIGN(const OnlyCall call, OnlyCall::enter(object->in_call, "engine"));
    EBB_TRY_ASSIGN(const OnlyCall of_ranks, collective_call(*object->ranks));
    return while_whole(*object, body);
  });
}

}  // namespace ebb::c
