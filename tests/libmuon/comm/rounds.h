// Buffers of exchanges whose bytes say who sent them to whom.
#pragma once

#include <cstddef>
#include <vector>

#include "ebb/libmuon/comm/communicator.h"

namespace ebb::libmuon {

inline std::vector<std::byte> pattern(std::uint32_t from, std::uint32_t to, std::size_t size) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i)
    bytes[i] = static_cast<std::byte>((i * 7 + from * 31 + to * 131) & 0xff);
  return bytes;
}

// Buffers of a full exchange: (from + 2 to) * scale bytes for each ordered pair, itself included.
struct Round {
  std::vector<std::vector<std::byte>> out, in;
  std::vector<SendBuffer> sends;
  std::vector<ReceiveBuffer> receives;

  explicit Round(const Communicator& comm, std::size_t scale = 100) {
    const std::uint32_t me = index_of(comm.rank());
    for (std::uint32_t peer = 0; peer < comm.world(); ++peer) {
      out.push_back(pattern(me, peer, (me + 2 * peer) * scale));
      in.emplace_back((peer + 2 * me) * scale);
    }
    for (std::uint32_t peer = 0; peer < comm.world(); ++peer) {
      sends.push_back({Rank{peer}, libswap::buffer_of(std::span(out[peer]))});
      receives.push_back({Rank{peer}, libswap::buffer_of(std::span(in[peer]))});
    }
  }
  bool arrived(const Communicator& comm) const {
    for (std::uint32_t peer = 0; peer < comm.world(); ++peer)
      if (in[peer] != pattern(peer, index_of(comm.rank()), in[peer].size())) return false;
    return true;
  }
};

}  // namespace ebb::libmuon
