// The runtime: memory, streams, events, contexts.
#include <cuda.h>

#include <atomic>
#include <condition_variable>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "ebb/formats/core/check.h"
#include "tests/libmuon/cuda/stub.h"
#include "tests/libmuon/cuda/stub_control.h"
#include "tests/libmuon/cuda/stub_stream.h"

namespace {

// Of the device's addresses, so that the host cannot use them. Where kernels do run on the host: 0.
#ifndef EBB_STUB_MOVED
#define EBB_STUB_MOVED (std::uint64_t{1} << 60)
#endif
constexpr std::uint64_t kMoved = EBB_STUB_MOVED;

// What an event's record means: passed when the stream has come to it.
struct Signal {
  std::mutex mutex;
  std::condition_variable changed;
  bool passed = false;
  void pass() {
    const std::lock_guard lock(mutex);
    passed = true;
    changed.notify_all();
  }
  void wait() {
    std::unique_lock lock(mutex);
    changed.wait(lock, [&] { return passed; });
  }
};

struct State {
  std::mutex mutex;
  std::map<std::uint64_t, std::uint64_t> allocated, pinned;  // address -> bytes
  std::atomic<std::uint64_t> copied_unpinned = 0;
  std::string failing;
  std::uint32_t calls_left = 0;
  std::atomic<std::uint32_t> late = 0;
  std::atomic<std::uint32_t> seed = 1;
};
State& state() {
  static State state;
  return state;
}

thread_local std::uint32_t contexts = 0;

std::uint64_t sum_of(const std::map<std::uint64_t, std::uint64_t>& extents) {
  std::uint64_t sum = 0;
  for (const auto& [address, bytes] : extents) sum += bytes;
  return sum;
}

// Calls that need a device need a context of the caller's thread.
cudaError_t checked(const char* function) {
  EBB_CHECK(contexts > 0);
  return ebb::stub::fails(function) ? cudaErrorUnknown : cudaSuccess;
}

bool of_device(std::uintptr_t address) {
  if (kMoved != 0) return address >= kMoved;
  const std::lock_guard lock(state().mutex);
  auto behind = state().allocated.upper_bound(address);
  return behind != state().allocated.begin() &&
         (--behind, address < behind->first + behind->second);
}

std::byte* bytes_at(const void* address, std::uint64_t bytes) {
  const auto value = reinterpret_cast<std::uintptr_t>(address);
  return of_device(value) ? ebb::stub::open(address, bytes) : reinterpret_cast<std::byte*>(value);
}

// Whether that is memory of the host outside what is pinned.
bool unpinned(const void* address, std::uint64_t bytes) {
  const auto value = reinterpret_cast<std::uintptr_t>(address);
  if (of_device(value)) return false;
  const std::lock_guard lock(state().mutex);
  const auto& pinned = state().pinned;
  auto behind = pinned.upper_bound(value);
  if (behind == pinned.begin()) return true;
  const auto& [first, size] = *--behind;
  return value + bytes > first + size;
}

}  // namespace

struct CUevent_st {
  std::mutex mutex;
  std::shared_ptr<Signal> signal;  // of its last record
  double at = 0;                   // by the clock of products
  std::shared_ptr<Signal> last() {
    const std::lock_guard lock(mutex);
    return signal;
  }
};

namespace ebb::stub {

std::byte* open(const void* address, std::uint64_t bytes) {
  const std::uint64_t first = reinterpret_cast<std::uintptr_t>(address) - kMoved;
  State& all = state();
  const std::lock_guard lock(all.mutex);
  auto found = all.allocated.upper_bound(first);
  EBB_CHECK(found != all.allocated.begin());
  --found;
  EBB_CHECK(first + bytes <= found->first + found->second);
  return reinterpret_cast<std::byte*>(first);
}

std::uint32_t late() { return state().late; }
std::uint32_t next_seed() { return ++state().seed; }

void enqueue(cudaStream_t stream, std::function<void()> work) { stream->add(std::move(work)); }

bool fails(const char* function) {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  if (all.failing != function) return false;
  if (all.calls_left == 0) return true;
  --all.calls_left;
  return false;
}

}  // namespace ebb::stub

extern "C" {

void ebb_stub_late(std::uint32_t microseconds) { state().late = microseconds; }
void ebb_stub_fail(const char* function, std::uint32_t calls) {
  const std::lock_guard lock(state().mutex);
  state().failing = function == nullptr ? "" : function;
  state().calls_left = calls;
}
std::uint64_t ebb_stub_allocated() {
  const std::lock_guard lock(state().mutex);
  return sum_of(state().allocated);
}
std::uint64_t ebb_stub_copied_unpinned() { return state().copied_unpinned; }
std::uint64_t ebb_stub_pinned() {
  const std::lock_guard lock(state().mutex);
  return sum_of(state().pinned);
}
std::uint32_t ebb_stub_contexts() { return contexts; }
void* ebb_stub_open_stream() { return new CUstream_st; }
void ebb_stub_close_stream(void* stream) { delete static_cast<CUstream_st*>(stream); }
void ebb_stub_add_one(void* stream, float* numbers, std::uint64_t count) {
  static_cast<CUstream_st*>(stream)->add([=] {
    auto* const here = reinterpret_cast<float*>(ebb::stub::open(numbers, count * sizeof(float)));
    for (std::uint64_t i = 0; i < count; ++i) here[i] += 1;
  });
}

static CUresult push(CUcontext) {
  ++contexts;
  return CUDA_SUCCESS;
}
static CUresult pop(CUcontext* was) {
  EBB_CHECK(contexts > 0);
  --contexts;
  *was = nullptr;
  return CUDA_SUCCESS;
}
static CUresult get(CUdevice* device, int index) {
  *device = index;
  return CUDA_SUCCESS;
}
static CUresult retain(CUcontext* context, CUdevice) {
  *context = nullptr;
  return CUDA_SUCCESS;
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned,
                                             unsigned long long,
                                             cudaDriverEntryPointQueryResult* result) {
  const std::map<std::string, void*> known = {
      {"cuCtxPushCurrent", reinterpret_cast<void*>(push)},
      {"cuCtxPopCurrent", reinterpret_cast<void*>(pop)},
      {"cuDeviceGet", reinterpret_cast<void*>(get)},
      {"cuDevicePrimaryCtxRetain", reinterpret_cast<void*>(retain)}};
  const auto found = known.find(symbol);
  *result = found == known.end() ? cudaDriverEntryPointSymbolNotFound : cudaDriverEntryPointSuccess;
  *function = found == known.end() ? nullptr : found->second;
  return cudaSuccess;
}

const char* cudaGetErrorString(cudaError_t error) {
  if (error == cudaErrorMemoryAllocation) return "out of memory";
  return error == cudaSuccess ? "no error" : "failed as asked";
}
cudaError_t cudaGetLastError() { return cudaSuccess; }

cudaError_t cudaGetDeviceCount(int* count) {
  *count = 2;
  if (ebb::stub::fails("driver")) return cudaErrorInsufficientDriver;
  return ebb::stub::fails("devices") ? cudaErrorNoDevice : cudaSuccess;
}
cudaError_t cudaInitDevice(int, unsigned, unsigned) { return cudaSuccess; }
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int) {
  *properties = {};
  std::strcpy(properties->name, "Stub");
  properties->major = ebb::stub::symmetric().faster_from != 0 ? 9 : 8;
  properties->multiProcessorCount = 4;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  EBB_CHECK(contexts > 0);
  if (ebb::stub::fails("cudaMalloc")) return cudaErrorMemoryAllocation;
  const std::uint64_t rounded = (bytes + 255) / 256 * 256;
  auto* const raw = static_cast<std::byte*>(std::aligned_alloc(256, rounded));
  std::memset(raw, 0x7f, rounded);
  const std::lock_guard lock(state().mutex);
  state().allocated[reinterpret_cast<std::uintptr_t>(raw)] = bytes;
  *memory = reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(raw) + kMoved);
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  EBB_CHECK(contexts > 0);
  const std::uint64_t address = reinterpret_cast<std::uintptr_t>(memory) - kMoved;
  const std::lock_guard lock(state().mutex);
  EBB_CHECK(state().allocated.erase(address) == 1);
  std::free(reinterpret_cast<void*>(address));
  return cudaSuccess;
}
cudaError_t cudaHostRegister(void* memory, std::size_t bytes, unsigned) {
  EBB_CHECK(contexts > 0);
  if (ebb::stub::fails("cudaHostRegister")) return cudaErrorMemoryAllocation;
  const std::lock_guard lock(state().mutex);
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  EBB_CHECK(state().pinned.emplace(address, bytes).second);
  return cudaSuccess;
}
cudaError_t cudaHostUnregister(void* memory) {
  EBB_CHECK(contexts > 0);
  const std::lock_guard lock(state().mutex);
  EBB_CHECK(state().pinned.erase(reinterpret_cast<std::uintptr_t>(memory)) == 1);
  return cudaSuccess;
}

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  EBB_CHECK(flags == cudaStreamNonBlocking);
  *stream = new CUstream_st;
  return checked("cudaStreamCreateWithFlags");
}
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  delete stream;
  return cudaSuccess;
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  const auto signal = std::make_shared<Signal>();
  stream->add([signal] { signal->pass(); });
  signal->wait();
  return checked("cudaStreamSynchronize");
}
cudaError_t cudaMemsetAsync(void* memory, int value, std::size_t bytes, cudaStream_t stream) {
  stream->add([=] { std::memset(ebb::stub::open(memory, bytes), value, bytes); });
  return checked("cudaMemsetAsync");
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  EBB_CHECK(kind == cudaMemcpyDefault);
  if (const auto error = checked("cudaMemcpyAsync"); error != cudaSuccess) return error;
  if (unpinned(to, bytes) || unpinned(from, bytes)) state().copied_unpinned += bytes;
  stream->add([=] { std::memcpy(bytes_at(to, bytes), bytes_at(from, bytes), bytes); });
  return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = new CUevent_st;
  return checked("cudaEventCreateWithFlags");
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  delete event;
  return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  const auto signal = std::make_shared<Signal>();
  {
    const std::lock_guard lock(event->mutex);
    event->signal = signal;
    event->at = ebb::stub::clock();
  }
  stream->add([signal] { signal->pass(); });
  return checked("cudaEventRecord");
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  *milliseconds = static_cast<float>(to->at - from->at);
  return checked("cudaEventElapsedTime");
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  if (const auto signal = event->last(); signal != nullptr)
    stream->add([signal] { signal->wait(); });
  return checked("cudaStreamWaitEvent");
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  if (const auto signal = event->last(); signal != nullptr) signal->wait();
  return checked("cudaEventSynchronize");
}

}  // extern "C"
