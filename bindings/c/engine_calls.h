// What the functions of ebb.h that take an engine do around their bodies.
#pragma once

#include "bindings/c/guarded.h"
#include "bindings/c/objects.h"

namespace ebb::c {

// What a call does with the engine that a handle leads to, from any thread.
template <typename Body>
ebb_status beside_others(ebb_engine* handle, const Body& body) noexcept {
  return guarded([&]() -> Result<> {
    EBB_TRY_ASSIGN(const auto object, engines().find(handle));
    if (object->broken)
      return Error{Code::state, "this engine is over: a call ran out of memory in the middle",
                   "close it and open it again: it goes on at its last snapshot"};
    const Passage passage(*object->ranks, &object->broken);
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
