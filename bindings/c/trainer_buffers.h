// A trainer's memory, as ebb.h describes it and as libmuon takes it.
#pragma once

#include <string_view>

#include "bindings/c/ebb.h"
#include "bindings/c/open_device.h"
#include "ebb/libswap/device/device.h"

namespace ebb::c {

// The buffers of one call. One thread.
class TrainerBuffers {
 public:
  // Borrowed; null: all memory is the host's.
  explicit TrainerBuffers(OpenDevice* device) : device_(device) {}

  struct Given {
    libswap::Buffer buffer;
    libswap::Event ready;  // behind what its stream was given
  };
  Result<Given> given(const ebb_buffer& buffer, std::string_view what);
  // Waits until it is ready.
  Result<libswap::Buffer> ready(const ebb_buffer& buffer, std::string_view what);

 private:
  Result<libswap::Event> behind(void* stream);

  OpenDevice* const device_;
  void* stream_ = nullptr;  // the last that was marked: mostly it is that of all
  libswap::Event mark_;
};

}  // namespace ebb::c
