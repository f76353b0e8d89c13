// A trainer's memory, as ebb.h describes it and as libmuon takes it.
#pragma once

#include <string_view>

#include "bindings/c/arguments.h"
#include "bindings/c/model.h"
#include "ebb/libswap/device/device.h"

namespace ebb::c {

inline Result<libswap::Buffer> buffer_of(const ebb_buffer& given, std::string_view what) {
  EBB_TRY_ASSIGN(const DType dtype, dtype_of(given.dtype, compose("{}: dtype", what)));
  if (given.elems == 0) return libswap::Buffer{nullptr, dtype, 0};
  if (given.data == nullptr) return missing(what);
  if (given.device != -1 || given.event != nullptr)
    return Error{
        Code::unsupported,
        compose("{}: memory of device {}; here all of it is the host's", what, given.device),
        "device = -1 and event = NULL say that it is"};
  return libswap::Buffer{static_cast<std::byte*>(given.data), dtype, given.elems};
}

}  // namespace ebb::c
