// A CUDA without a GPU: the functions of the runtime, of cuBLASLt and of NCCL that the plugin
// calls, so that its own code can be tested as it is; its kernels run on the host (emulated/).
// Memory has addresses of its own, which the host cannot use by mistake; a stream is a thread,
// whose work begins and is known to have ended late; any call fails when it is asked to, and so
// does the launch of any kernel. What the plugin must not call is not there: it would not link.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <string_view>

namespace ebb::cuda {
struct Batch;
struct Symmetric;
}  // namespace ebb::cuda

namespace ebb::stub {

// The memory at an address of the device, as the host sees it. Stops the program where it is none,
// or ends too early, or was freed.
std::byte* open(const void* address, std::uint64_t bytes);

// A word of what a kernel is given: an address of the device's memory as the host's, anything else
// as it is. What was freed is an address that nobody has.
std::uint64_t on_host(std::uint64_t word);

// Gives a stream work.
void enqueue(cudaStream_t stream, std::function<void()> work);

// Up to how many microseconds late a stream is, and what its lateness is drawn with.
std::uint32_t late();
std::uint32_t next_seed();

// The clock that products take time by: a library's one unit, whatever its size, symmetric ones as
// ebb_stub_symmetric() says.
double clock();
void spend(double time);
bool has_symmetric();
// Whether a product of so many multiplications is left out: tests wait for their measurement.
bool too_large(std::uint64_t multiplications);
// Whether a kernel that is given these is to run: one that is measured may be left out, too.
bool runs(cudaStream_t stream, const cuda::Symmetric& product);
bool runs(cudaStream_t stream, const cuda::Batch& mirrored);
template <typename... Other>
bool runs(cudaStream_t, const Other&...) {
  return true;
}

// Whether this call of the function, or launch of the kernel, is to fail; else it is counted.
bool fails(std::string_view name);

}  // namespace ebb::stub
