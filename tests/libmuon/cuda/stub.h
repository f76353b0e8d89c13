// A CUDA without a GPU: the functions of the runtime, of cuBLASLt and of the launches that the
// plugin calls, so that its own code can be tested as it is. Memory has addresses of its own, which
// the host cannot use by mistake; a stream is a thread, whose work begins and is known to have
// ended late; any call fails when it is asked to. What the plugin must not call is not there: it
// would not link.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>

namespace ebb::stub {

// The memory at an address of the device, as the host sees it. Stops the program where it is none,
// or ends too early, or was freed.
std::byte* open(const void* address, std::uint64_t bytes);

// Gives a stream work.
void enqueue(cudaStream_t stream, std::function<void()> work);

// Whether this call of the function is to fail.
bool fails(const char* function);

}  // namespace ebb::stub
