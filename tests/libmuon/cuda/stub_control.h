// What tests ask of the stub (stub.h): they load the plugin over it and look these up there.
#pragma once

#include <cstdint>

namespace ebb::cuda {
struct Symmetric;
}

extern "C" {
// Work begins up to so many microseconds late, and so is its end known.
void ebb_stub_late(std::uint32_t microseconds);
// The call of that function, or launch of that kernel, after `calls` more fails, and all behind it;
// a null name: none.
void ebb_stub_fail(const char* name, std::uint32_t calls);
// How many have not failed so far.
std::uint64_t ebb_stub_calls(const char* name);
// Bytes of the device that are allocated; of the host that are pinned.
std::uint64_t ebb_stub_allocated();
std::uint64_t ebb_stub_pinned();
// Bytes copied so far between the device and memory of the host that was not pinned.
std::uint64_t ebb_stub_copied_unpinned();
// How many contexts this thread has pushed and not popped.
std::uint32_t ebb_stub_contexts();
// Streams of a trainer's own.
void* ebb_stub_open_stream();
void ebb_stub_close_stream(void* stream);
// Work of such a stream: adds one to `count` elements of the device's memory.
void ebb_stub_add_one(void* stream, float* numbers, std::uint64_t count);
// Symmetric products of the device's own: from how many rows on they are faster, 0: it has none;
// and whether they are wrong. Before the device is opened.
void ebb_stub_symmetric(std::uint64_t faster_from, std::uint32_t wrong);
// One of them, of the host's memory, as on a device that has so many processors.
void ebb_emulated_symmetric(const ebb::cuda::Symmetric* product, unsigned processors);
// The ncclComm_t of each rank of a new group, whose calls answer ncclInProgress unless it blocks;
// ends the waiting in one's; and one itself.
void ebb_stub_groups(std::uint32_t world, std::uint32_t blocking, void** groups);
void ebb_stub_abort(void* group);
void ebb_stub_end_group(void* group);
}
