// guarded: the body of every function of ebb.h. What it answers becomes a status and this thread's
// last error; nothing is thrown past it.
#pragma once

#include <exception>
#include <new>
#include <utility>

#include "bindings/c/ebb.h"
#include "ebb/formats/core/result.h"

namespace ebb::c {

// What the body answered, as this thread's last error. Memory that is not there changes no answer,
// but in whose words an error is.
void clear_error() noexcept;
ebb_status keep_error(Error error) noexcept;
ebb_status keep_no_memory() noexcept;
ebb_status keep_internal(const char* what) noexcept;

template <typename Body>
ebb_status guarded(const Body& body) noexcept {
  clear_error();
  try {
    Result<> answer = body();
    return answer ? EBB_DONE : keep_error(std::move(answer).error());
  } catch (const std::bad_alloc&) {
    return keep_no_memory();
  } catch (const std::exception& exception) {
    return keep_internal(exception.what());
  } catch (...) {
    return keep_internal("an exception of no known type");
  }
}

}  // namespace ebb::c
