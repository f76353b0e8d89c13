// Wire: what travels between the ranks of a step, round after round. Memory that the communicator
// does not take is copied through some of the host's, the bounce: it is in the engine's plan.
// One thread at a time.
#pragma once

#include <span>
#include <vector>

#include "ebb/libmuon/comm/communicator.h"

namespace ebb::libmuon {

class Wire {
 public:
  // Borrows the communicator. `bounce`: of the host; room for what one round needs of it.
  Wire(Communicator& ranks, libswap::DeviceMemory bounce);

  std::uint32_t world() const { return ranks_.world(); }
  // One round, to its end.
  Result<> exchange(std::vector<SendBuffer> sends, std::vector<ReceiveBuffer> receives);

 private:
  bool takes(const libswap::Buffer& buffer) const;

  Communicator& ranks_;
  libswap::DeviceMemory bounce_;
};

}  // namespace ebb::libmuon
