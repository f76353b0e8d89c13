// The device's table over the CUDA runtime. Nothing here synchronizes a device.
#include "plugins/cuda/device.h"

#include <algorithm>
#include <cstring>
#include <memory>

namespace ebb::cuda {

Answer because(Why* why, Answer answer, const std::string& text) {
  const std::size_t size = std::min(text.size(), sizeof(why->text) - 1);
  std::memcpy(why->text, text.data(), size);
  why->text[size] = '\0';
  return answer;
}

Answer answer_of(cudaError_t error, const char* doing, Why* why) {
  if (error == cudaSuccess) return Answer::done;
  // An error that is no fault of the device's stays in the thread until it is asked for.
  static_cast<void>(cudaGetLastError());
  const Answer answer = error == cudaErrorMemoryAllocation ? Answer::no_memory : Answer::failed;
  return because(why, answer, std::string(doing) + ": " + cudaGetErrorString(error));
}

namespace {

// Of the driver, by the runtime that is loaded: nothing is linked with the driver.
template <typename Function>
Answer driver_function(const char* name, Function*& function, Why* why) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result = cudaDriverEntryPointSymbolNotFound;
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion(name, &found, 12000, cudaEnableDefault, &result);
  if (error != cudaSuccess || result != cudaDriverEntryPointSuccess || found == nullptr)
    return because(why, Answer::unavailable, std::string("the driver has no ") + name);
  function = reinterpret_cast<Function*>(found);
  return Answer::done;
}

Answer find_device(std::int32_t index, Why* why) {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorInsufficientDriver || error == cudaErrorStubLibrary)
    return because(why, Answer::unavailable,
                   "there is no NVIDIA driver, or one that is too old for CUDA 13");
  if (error == cudaErrorNoDevice || (error == cudaSuccess && count == 0))
    return because(why, Answer::unavailable, "the NVIDIA driver sees no device");
  if (error != cudaSuccess)
    return because(why, Answer::unavailable,
                   std::string("cudaGetDeviceCount: ") + cudaGetErrorString(error));
  if (index < 0 || index >= count)
    return because(
        why, Answer::unavailable,
        "there is no device " + std::to_string(index) + ", there are " + std::to_string(count));
  return Answer::done;
}

// The primary context, which the runtime and every other library of the process use too.
Answer find_context(CudaDevice& device, Why* why) {
  CUresult (*retain)(CUcontext*, CUdevice) = nullptr;
  CUresult (*get)(CUdevice*, int) = nullptr;
  for (const Answer answer : {driver_function("cuCtxPushCurrent", device.push, why),
                              driver_function("cuCtxPopCurrent", device.pop, why),
                              driver_function("cuDeviceGet", get, why),
                              driver_function("cuDevicePrimaryCtxRetain", retain, why)})
    if (answer != Answer::done) return answer;
  if (const auto error = cudaInitDevice(device.index, 0, 0); error != cudaSuccess)
    return answer_of(error, "cudaInitDevice", why);
  CUdevice handle = 0;
  if (get(&handle, device.index) != CUDA_SUCCESS || retain(&device.context, handle) != CUDA_SUCCESS)
    return because(why, Answer::failed, "the device's primary context cannot be had");
  return Answer::done;
}

Answer open(std::int32_t index, void** opened, Why* why) {
  if (const Answer answer = find_device(index, why); answer != Answer::done) return answer;
  auto device = std::make_unique<CudaDevice>();
  device->index = index;
  if (const Answer answer = find_context(*device, why); answer != Answer::done) return answer;
  cudaDeviceProp properties;
  if (const auto error = cudaGetDeviceProperties(&properties, index); error != cudaSuccess)
    return answer_of(error, "cudaGetDeviceProperties", why);
  device->name = std::string(properties.name) + " " + std::to_string(index);
  device->processors = static_cast<unsigned>(properties.multiProcessorCount);
  device->hopper = properties.major == 9;
  const Current current(*device);
  if (const auto error = cudaStreamCreateWithFlags(&device->zeroing, cudaStreamNonBlocking);
      error != cudaSuccess)
    return answer_of(error, "cudaStreamCreateWithFlags", why);
  *opened = device.release();
  return Answer::done;
}

// The primary context stays: others may use it.
void close(void* closed) {
  const std::unique_ptr<CudaDevice> device(&device_of(closed));
  const Current current(*device);
  const libswap::MutexLock lock(device->mutex);
  for (const cudaEvent_t event : device->spare) cudaEventDestroy(event);
  cudaStreamDestroy(device->zeroing);
}

void name(void* device, char* text, std::uint64_t size) {
  const std::string& name = device_of(device).name;
  std::copy_n(name.begin(), std::min<std::uint64_t>(size, name.size()), text);
}

Answer allocate(void* device, std::uint64_t bytes, void** memory, Why* why) {
  const Current current(device_of(device));
  return answer_of(cudaMalloc(memory, bytes), "cudaMalloc", why);
}

void release(void* device, void* memory) {
  const Current current(device_of(device));
  cudaFree(memory);
}

Answer zero(void* device, void* memory, std::uint64_t bytes, Why* why) {
  const CudaDevice& on = device_of(device);
  const Current current(on);
  if (const auto error = cudaMemsetAsync(memory, 0, bytes, on.zeroing); error != cudaSuccess)
    return answer_of(error, "cudaMemsetAsync", why);
  return answer_of(cudaStreamSynchronize(on.zeroing), "cudaStreamSynchronize", why);
}

// For every device, so that other ranks of the process may use it too.
Answer pin(void* device, void* memory, std::uint64_t bytes, Why* why) {
  const Current current(device_of(device));
  return answer_of(cudaHostRegister(memory, bytes, cudaHostRegisterPortable), "cudaHostRegister",
                   why);
}

void unpin(void* device, void* memory) {
  const Current current(device_of(device));
  cudaHostUnregister(memory);
}

// Does not wait for the legacy default stream, nor it for this.
Answer open_stream(void* device, void** stream, Why* why) {
  const Current current(device_of(device));
  cudaStream_t opened = nullptr;
  const Answer answer = answer_of(cudaStreamCreateWithFlags(&opened, cudaStreamNonBlocking),
                                  "cudaStreamCreateWithFlags", why);
  *stream = opened;
  return answer;
}

void close_stream(void* device, void* stream) {
  const Current current(device_of(device));
  cudaStreamDestroy(stream_of(stream));
}

void drain(void* device, void* stream) {
  const Current current(device_of(device));
  static_cast<void>(cudaStreamSynchronize(stream_of(stream)));
}

// Addresses are unified: they say themselves what memory they are of.
Answer copy(void* device, void* stream, const void* from, void* to, std::uint64_t bytes, Why* why) {
  const Current current(device_of(device));
  return answer_of(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream_of(stream)),
                   "cudaMemcpyAsync", why);
}

Answer mark(void* device, void* stream, void** made, Why* why) {
  CudaDevice& on = device_of(device);
  const Current current(on);
  cudaEvent_t event = nullptr;
  {
    const libswap::MutexLock lock(on.mutex);
    if (!on.spare.empty()) {
      event = on.spare.back();
      on.spare.pop_back();
    }
  }
  if (event == nullptr) {
    const auto error =
        cudaEventCreateWithFlags(&event, cudaEventBlockingSync | cudaEventDisableTiming);
    if (error != cudaSuccess) return answer_of(error, "cudaEventCreateWithFlags", why);
  }
  *made = event;
  return answer_of(cudaEventRecord(event, stream_of(stream)), "cudaEventRecord", why);
}

Answer follow(void* device, void* stream, void* mark, Why* why) {
  const Current current(device_of(device));
  return answer_of(
      cudaStreamWaitEvent(stream_of(stream), static_cast<cudaEvent_t>(mark), cudaEventWaitDefault),
      "cudaStreamWaitEvent", why);
}

Answer wait(void* device, void* mark, Why* why) {
  const Current current(device_of(device));
  return answer_of(cudaEventSynchronize(static_cast<cudaEvent_t>(mark)), "work of the device", why);
}

void release_mark(void* device, void* mark) {
  CudaDevice& on = device_of(device);
  const libswap::MutexLock lock(on.mutex);
  on.spare.push_back(static_cast<cudaEvent_t>(mark));
}

}  // namespace

const libswap::DeviceTable kDeviceTable = {
    .head = {sizeof(libswap::DeviceTable), libswap::kDeviceTableVersion},
    .open = open,
    .close = close,
    .name = name,
    .allocate = allocate,
    .release = release,
    .zero = zero,
    .pin = pin,
    .unpin = unpin,
    .open_stream = open_stream,
    .close_stream = close_stream,
    .drain = drain,
    .copy = copy,
    .mark = mark,
    .follow = follow,
    .wait = wait,
    .release_mark = release_mark};

}  // namespace ebb::cuda
