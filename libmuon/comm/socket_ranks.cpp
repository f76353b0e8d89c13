#include "ebb/libmuon/comm/socket_ranks.h"

#include <algorithm>
#include <bit>
#include <utility>
#include <vector>

#include "ebb/libmuon/comm/connecting.h"
#include "ebb/libmuon/comm/message_ranks.h"
#include "ebb/libmuon/comm/socket_transport.h"
#include "ebb/libswap/sys/process.h"

namespace ebb::libmuon {
namespace {

constexpr std::uint64_t kMostRing = formats::MiB;  // lies in a processor's own cache
constexpr std::uint64_t kLeastRing = 64 * formats::KiB;
constexpr std::uint64_t kOtherDescriptors = 64;  // that the process opens meanwhile

// All of a rank's rings, of which it has a half with each peer, stay below kMostRanksBytes.
std::uint64_t ring_bytes(std::size_t world) {
  return std::clamp(std::bit_floor(kMostRanksBytes / world), kLeastRing, kMostRing);
}

Result<std::vector<SocketAddress>> parse_all(std::span<const std::string> texts) {
  std::vector<SocketAddress> addresses;
  for (std::uint32_t rank = 0; rank < texts.size(); ++rank) {
    EBB_TRY_ASSIGN(SocketAddress address, SocketAddress::parse(texts[rank], rank));
    const auto first = std::ranges::find(addresses, address.asked, &SocketAddress::asked);
    if (first != addresses.end())
      return Error{
          Code::usage,
          compose("ranks {} and {} have the same address", first - addresses.begin(), rank),
          "one listener a rank, each with an address of its own"};
    addresses.push_back(std::move(address));
  }
  return addresses;
}

}  // namespace

Result<std::unique_ptr<Communicator>> make_socket_ranks(SocketListener listener, Rank rank,
                                                        std::span<const std::string> addresses,
                                                        std::chrono::milliseconds limit) {
  if (index_of(rank) >= addresses.size())
    return Error{Code::usage,
                 compose("rank {} in a world of {} addresses", index_of(rank), addresses.size())};
  if (addresses[index_of(rank)] != listener.address())
    return Error{Code::usage,
                 compose("the address of rank {} is not that of the listener which "
                         "is to be rank {}",
                         index_of(rank), index_of(rank)),
                 "pass the addresses by rank"};
  EBB_TRY_ASSIGN(const std::vector<SocketAddress> parsed, parse_all(addresses));
  // While it connects, three a peer: two, and the rings' memory on its way.
  EBB_TRY(libswap::make_room_for_descriptors(3 * addresses.size() + kOtherDescriptors));
  EBB_TRY_ASSIGN(auto links,
                 connect_all(listener, rank, parsed, ring_bytes(addresses.size()), limit));
  EBB_TRY_ASSIGN(auto transport, SocketTransport::make(rank, std::move(links)));
  return make_message_ranks(std::move(transport), limit);
}

}  // namespace ebb::libmuon
