#include "bindings/c/trainer_buffers.h"

#include "bindings/c/arguments.h"
#include "bindings/c/model.h"

namespace ebb::c {
namespace {

constexpr std::int32_t kHost = -1;

Result<> check_memory(const ebb_buffer& given, const OpenDevice* device, std::string_view what) {
  if (given.device == kHost || (device != nullptr && given.device == device->index())) {
    if (given.stream == nullptr || device != nullptr) return {};
    return Error{Code::unsupported,
                 compose("{}: it comes with a stream, and the model has no device", what),
                 "stream = NULL says that it is there"};
  }
  return Error{Code::unsupported,
               compose("{}: memory of device {}; here it is the host's{}", what, given.device,
                       device == nullptr ? "" : compose(", or of device {}", device->index())),
               "device = -1 says that it is the host's; ebb_model's device, that it computes"};
}

}  // namespace

Result<libswap::Event> TrainerBuffers::behind(void* stream) {
  if (stream == nullptr) return libswap::Event();
  if (stream != stream_) {
    EBB_TRY_ASSIGN(mark_, device_->device().recorded(stream));
    stream_ = stream;
  }
  return mark_;
}

Result<TrainerBuffers::Given> TrainerBuffers::given(const ebb_buffer& buffer,
                                                    std::string_view what) {
  EBB_TRY_ASSIGN(const DType dtype, dtype_of(buffer.dtype, compose("{}: dtype", what)));
  if (buffer.elems == 0) return Given{{nullptr, dtype, 0}, {}};
  if (buffer.data == nullptr) return missing(what);
  EBB_TRY(check_memory(buffer, device_, what));
  EBB_TRY_ASSIGN(auto ready, behind(buffer.stream));
  libswap::Device* const on = buffer.device == kHost ? nullptr : &device_->device();
  return Given{{static_cast<std::byte*>(buffer.data), dtype, buffer.elems, on}, std::move(ready)};
}

Result<libswap::Buffer> TrainerBuffers::ready(const ebb_buffer& buffer, std::string_view what) {
  EBB_TRY_ASSIGN(const Given one, given(buffer, what));
  one.ready.wait();
  return one.buffer;
}

}  // namespace ebb::c
