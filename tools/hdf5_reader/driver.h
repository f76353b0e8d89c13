// The file as libhdf5 sees it here: bytes asked for over a socket, in blocks, kept for a while.
#pragma once

#include <hdf5.h>

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "ebb/formats/core/result.h"
#include "tools/hdf5_reader/handle.h"

namespace ebb::hdf5_reader {

constexpr const char* kFileName = "/checkpoint";  // absolute, so that the library asks for no cwd

class Bytes {
 public:
  Bytes(int socket, std::uint64_t size) : socket_(socket), size_(size) {}

  std::uint64_t size() const { return size_; }
  // Beyond the file's end everything is zero, as for a driver over a real file. False when the
  // other side has gone.
  bool read(std::uint64_t at, std::byte* into, std::size_t count);

  // While tracing, element data is not fetched: where it lies is remembered instead.
  struct Place {
    std::uint64_t at = 0;
    std::uint64_t count = 0;
    unsigned reads = 0;
  };
  void start_trace() { trace_ = {}, tracing_ = true; }
  Place end_trace() {
    tracing_ = false;
    return trace_;
  }
  bool note_if_tracing(std::uint64_t at, std::size_t count) {
    if (tracing_) trace_ = {at, count, trace_.reads + 1};
    return tracing_;
  }

 private:
  const std::vector<std::byte>* block(std::uint64_t number);

  int socket_;
  std::uint64_t size_;
  bool tracing_ = false;
  Place trace_;
  std::unordered_map<std::uint64_t, std::vector<std::byte>> blocks_;
};

// A property list that opens kFileName, and nothing else, as `bytes`, which must outlive it.
Result<Handle> access_through(Bytes& bytes);

}  // namespace ebb::hdf5_reader
