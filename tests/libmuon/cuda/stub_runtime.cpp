// The runtime: memory, streams, events, contexts.
#include <cuda.h>
#include <pthread.h>
#include <sys/mman.h>

#include <atomic>
#include <condition_variable>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "ebb/formats/core/check.h"
#include "ebb/formats/core/units.h"
#include "tests/libmuon/cuda/stub.h"
#include "tests/libmuon/cuda/stub_control.h"
#include "tests/libmuon/cuda/stub_stream.h"

namespace {

// Added to the device's addresses, so that the host cannot use them.
constexpr std::uint64_t kMoved = std::uint64_t{1} << 60;

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
  std::map<std::string, std::uint64_t, std::less<>> calls;
  std::atomic<std::uint32_t> late = 0;
  std::atomic<std::uint32_t> seed = 1;
};
// A fork waits until no thread is inside: its child asks what there is.
State& state() {
  static State state;
  const auto enter = [] { ::state().mutex.lock(); };
  const auto leave = [] { ::state().mutex.unlock(); };
  static const int registered = ::pthread_atfork(enter, leave, leave);
  EBB_CHECK(registered == 0);
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

bool of_device(std::uintptr_t address) { return address >= kMoved; }

// Where the memory ends that an address of the device lies in, or just behind; without: 0.
std::uint64_t end_of_memory(std::uint64_t address) {
  const std::lock_guard lock(state().mutex);
  const auto& allocated = state().allocated;
  auto found = allocated.upper_bound(address - kMoved);
  if (found == allocated.begin()) return 0;
  const auto& [first, bytes] = *--found;
  return address - kMoved <= first + bytes ? first + bytes : 0;
}

// Of pages of its own: who writes behind its end is stopped there.
constexpr std::uint64_t kPage = 4096, kUnit = 256;  // addresses are multiples of this
std::byte* map(std::uint64_t bytes) {
  const std::uint64_t pages = ebb::formats::align_up(bytes, kPage);
  void* const first =
      ::mmap(nullptr, pages + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  EBB_CHECK(first != MAP_FAILED);
  std::byte* const end = static_cast<std::byte*>(first) + pages;
  EBB_CHECK(::mprotect(end, kPage, PROT_NONE) == 0);
  return end - ebb::formats::align_up(bytes, kUnit);
}
void unmap(std::byte* memory, std::uint64_t bytes) {
  const std::uint64_t pages = ebb::formats::align_up(bytes, kPage);
  std::byte* const end = memory + ebb::formats::align_up(bytes, kUnit);
  EBB_CHECK(::munmap(end - pages, pages + kPage) == 0);
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
  const auto value = reinterpret_cast<std::uintptr_t>(address);
  EBB_CHECK(value - kMoved + bytes <= end_of_memory(value));
  return reinterpret_cast<std::byte*>(value - kMoved);
}
std::uint64_t on_host(std::uint64_t word) {
  return of_device(word) && end_of_memory(word) != 0 ? word - kMoved : word;
}

std::uint32_t late() { return state().late; }
std::uint32_t next_seed() { return ++state().seed; }

void enqueue(cudaStream_t stream, std::function<void()> work) { stream->add(std::move(work)); }

bool fails(std::string_view name) {
  State& all = state();
  const std::lock_guard lock(all.mutex);
  const bool meant = all.failing == name;
  if (meant && all.calls_left == 0) return true;
  if (meant) --all.calls_left;
  ++all.calls[std::string(name)];
  return false;
}

}  // namespace ebb::stub

extern "C" {

void ebb_stub_late(std::uint32_t microseconds) { state().late = microseconds; }
void ebb_stub_fail(const char* name, std::uint32_t calls) {
  const std::lock_guard lock(state().mutex);
  state().failing = name == nullptr ? "" : name;
  state().calls_left = calls;
}
std::uint64_t ebb_stub_calls(const char* name) {
  const std::lock_guard lock(state().mutex);
  const auto found = state().calls.find(name);
  return found == state().calls.end() ? 0 : found->second;
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
  properties->major = ebb::stub::has_symmetric() ? 9 : 8;
  properties->multiProcessorCount = 4;
  return cudaSuccess;
}

cudaError_t cudaMalloc(void** memory, std::size_t bytes) {
  EBB_CHECK(contexts > 0);
  if (ebb::stub::fails("cudaMalloc")) return cudaErrorMemoryAllocation;
  std::byte* const raw = map(bytes);
  std::memset(raw, 0x7f, bytes);
  const std::lock_guard lock(state().mutex);
  state().allocated[reinterpret_cast<std::uintptr_t>(raw)] = bytes;
  *memory = reinterpret_cast<void*>(reinterpret_cast<std::uintptr_t>(raw) + kMoved);
  return cudaSuccess;
}
cudaError_t cudaFree(void* memory) {
  EBB_CHECK(contexts > 0);
  const std::uint64_t address = reinterpret_cast<std::uintptr_t>(memory) - kMoved;
  const std::lock_guard lock(state().mutex);
  const auto freed = state().allocated.find(address);
  EBB_CHECK(freed != state().allocated.end());
  unmap(reinterpret_cast<std::byte*>(address), freed->second);
  state().allocated.erase(freed);
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
