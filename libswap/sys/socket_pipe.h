// SocketPipe: a BytePipe over a connected stream socket, of one machine or between two. What ends
// it is no error of its calls: over() says why nothing follows.
#pragma once

#include <atomic>
#include <chrono>
#include <optional>
#include <string>

#include "ebb/libswap/sys/byte_pipe.h"
#include "ebb/libswap/sys/unique.h"

namespace ebb::libswap {

class SocketPipe : public BytePipe {
 public:
  // Takes the socket, and sets it up: without delay, and, between machines, such that a peer that
  // vanished is noticed within a minute. In a child made by fork() it is closed, lest the peer take
  // the child for this process.
  explicit SocketPipe(Descriptor socket);
  ~SocketPipe() override;
  SocketPipe(const SocketPipe&) = delete;
  SocketPipe& operator=(const SocketPipe&) = delete;

  // What cannot be delivered any more counts as gone.
  Result<std::size_t> write(ByteView bytes) override;
  Result<std::size_t> read(std::span<std::byte> into) override;
  // Why nothing follows what read() gave, once nothing does. Any thread.
  std::optional<std::string> over() const;
  // Waits, so long at most, until the peer's machine has all that was written: what a socket that
  // is closed may lose.
  void settle(std::chrono::milliseconds most) const;
  int descriptor() const { return socket_.get(); }

 private:
  Descriptor socket_;
  const bool is_tcp_;
  mutable std::atomic<int> failure_ = 0;  // the first errno: the kernel says it once
};

}  // namespace ebb::libswap
