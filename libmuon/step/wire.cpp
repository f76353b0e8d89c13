#include "ebb/libmuon/step/wire.h"

#include <map>
#include <utility>

namespace ebb::libmuon {

using libswap::Buffer;
using libswap::Event;

namespace {

struct Upload {
  Buffer from, to;
};

}  // namespace

Wire::Wire(Communicator& ranks, libswap::DeviceMemory bounce)
    : ranks_(ranks), bounce_(std::move(bounce)) {}

bool Wire::takes(const Buffer& buffer) const {
  return buffer.device == nullptr || ranks_.takes(*buffer.device);
}

Result<> Wire::exchange(std::vector<SendBuffer> sends, std::vector<ReceiveBuffer> receives) {
  std::uint64_t used = 0;
  const auto room_for = [&](const Buffer& buffer) {
    const std::uint64_t first = std::exchange(used, used + buffer.size());
    return bounce_.buffer().sub(first, buffer.size()).as(buffer.dtype);
  };
  std::vector<Event> ready;
  std::map<std::pair<const std::byte*, std::uint64_t>, Buffer> down;  // what goes to many, once
  for (SendBuffer& send : sends) {
    if (takes(send.data)) continue;
    const auto [known, is_new] = down.try_emplace({send.data.data, send.data.size()});
    if (is_new) {
      known->second = room_for(send.data);
      ready.push_back(libswap::copy(send.data, known->second, {}));
    }
    send.data = known->second;
  }
  std::vector<Upload> up;
  for (ReceiveBuffer& receive : receives)
    if (!takes(receive.data)) {
      const Buffer here = room_for(receive.data);
      up.push_back({here, std::exchange(receive.data, here)});
    }
  const auto through = ranks_.begin_exchange(sends, receives, ready);
  libswap::all_of(ready).wait();  // an error leaves nothing under way, either
  if (!through) return through.error();
  (*through).wait();
  std::vector<Event> last;
  for (const Upload& one : up) last.push_back(libswap::copy(one.from, one.to, {}));
  libswap::all_of(last).wait();
  return {};
}

}  // namespace ebb::libmuon
