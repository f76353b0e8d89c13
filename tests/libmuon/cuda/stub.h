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

// Up to how many microseconds late a stream is, and what its lateness is drawn with.
std::uint32_t late();
std::uint32_t next_seed();

// Of products, as ebb_stub_symmetric() set it: from how many rows on symmetric ones are faster than
// the library's (0: there are none), and whether they are wrong. A library's takes one unit of the
// clock, whatever its size.
struct SymmetricProducts {
  std::uint64_t faster_from = 0;
  bool wrong = false;
};
SymmetricProducts symmetric();
double clock();
void spend(double time);
// Whether a product of so many multiplications is left out: tests wait for their measurement.
bool too_large(std::uint64_t multiplications);

// Whether this call of the function is to fail.
bool fails(const char* function);

}  // namespace ebb::stub
