// What the functions of ebb.h that take an engine, or a swap space, do around their bodies.
#pragma once

#include "bindings/c/guarded.h"
#include "bindings/c/objects.h"

namespace ebb::c {

// body(object), unless an exception has left a call of it in the middle. Inside of OnlyCall:
// whoever comes next is not to find it whole when this one was left so.
template <typename Object, typename Body>
Result<> while_whole(Object& object, const Body& body) {
  if (object.broken)
    return Error{Code::state,
                 compose("this {} is over: a call ran out of memory in the middle", Object::kWhat),
                 "close it and open it again: it goes on at its last snapshot"};
  const Passage passage(*object.ranks, &object.broken);
  return body(object);
}

// What a call does with the object that a handle leads to: from any thread; from one at a time;
// from one at a time on all ranks.
template <typename Object, typename Body>
ebb_status beside_others(Handles<Object>& all, const void* handle, const Body& body) noexcept {
  return guarded([&]() -> Result<> {
    EBB_TRY_ASSIGN(const auto object, all.find(handle));
    return while_whole(*object, body);
  });
}
template <typename Object, typename Body>
ebb_status alone(Handles<Object>& all, const void* handle, const Body& body) noexcept {
  return guarded([&]() -> Result<> {
    EBB_TRY_ASSIGN(const auto object, all.find(handle));
    EBB_TRY_ASSIGN(const OnlyCall call, OnlyCall::enter(object->in_call, Object::kWhat));
    return while_whole(*object, body);
  });
}
template <typename Object, typename Body>
ebb_status collectively(Handles<Object>& all, const void* handle, const Body& body) noexcept {
  return guarded([&]() -> Result<> {
    EBB_TRY_ASSIGN(const auto object, all.find(handle));
    EBB_TRY_ASSIGN(const OnlyCall call, OnlyCall::enter(object->in_call, Object::kWhat));
    EBB_TRY_ASSIGN(const OnlyCall of_ranks, collective_call(*object->ranks));
    return while_whole(*object, body);
  });
}

template <typename Body>
ebb_status beside_others(ebb_engine* engine, const Body& body) noexcept {
  return beside_others(engines(), engine, body);
}
template <typename Body>
ebb_status with_engine(ebb_engine* engine, const Body& body) noexcept {
  return alone(engines(), engine, body);
}
template <typename Body>
ebb_status collectively(ebb_engine* engine, const Body& body) noexcept {
  return collectively(engines(), engine, body);
}

}  // namespace ebb::c
