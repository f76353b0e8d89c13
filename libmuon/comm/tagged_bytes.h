// TaggedBytes: runs of bytes with tags through one pipe, in frames. Several threads write and read,
// each with a tag of its own; a frame that came for another tag waits for that tag's thread.
#pragma once

#include <array>
#include <cstdint>

#include "ebb/libmuon/comm/byte_lane.h"
#include "ebb/libswap/sys/byte_pipe.h"
#include "ebb/libswap/sys/mutex.h"

namespace ebb::libmuon {

class TaggedBytes {
 public:
  explicit TaggedBytes(libswap::BytePipe& pipe) : pipe_(pipe) {}

  // Moves what goes without waiting, a few MiB at most; whether any did. A lane that was written is
  // read as one of the same length.
  Result<bool> write(std::uint32_t tag, ByteLane& from);
  Result<bool> read(std::uint32_t tag, ByteLane& into);

 private:
  struct Header {
    std::uint32_t tag = 0, bytes = 0;
  };
  struct Frame {
    Header header;
    std::size_t header_left = 0;  // bytes of it
    std::size_t left = 0;         // of what it announces
    bool under_way() const { return header_left > 0 || left > 0; }
    std::span<std::byte> rest_of_header() {
      return std::as_writable_bytes(std::span(&header, 1)).last(header_left);
    }
  };

  libswap::BytePipe& pipe_;
  libswap::Mutex write_mutex_, read_mutex_;
  Frame written_ EBB_GUARDED_BY(write_mutex_), read_ EBB_GUARDED_BY(read_mutex_);
};

}  // namespace ebb::libmuon
