#include "ebb/libmuon/step/reduction.h"

#include <algorithm>
#include <utility>

namespace ebb::libmuon {

using libswap::Buffer;

namespace {

using Part = ModelLayout::Part;

// How many parts an element is the sum of.
std::uint32_t parts_of_each(const Layout::Spec& spec) {
  return spec.policy == Policy::replicated ? spec.mesh.ranks() : spec.mesh.replicas;
}

// The ranks that have parts of what a shard holds, ascending; of a replicated parameter there is
// one shard, at all of its ranks.
std::vector<Rank> ranks_of(const Part& part, std::uint32_t shard) {
  std::vector<Rank> ranks;
  const formats::Mesh& mesh = part.mesh();
  for (std::uint32_t copy = 0; copy < mesh.replicas; ++copy) {
    if (!part.replicated()) ranks.push_back(mesh.rank_of({shard, copy}));
    for (std::uint32_t i = 0; part.replicated() && i < mesh.shard_world; ++i)
      ranks.push_back(mesh.rank_of({i, copy}));
  }
  std::ranges::sort(ranks);
  return ranks;
}

}  // namespace

Reduction::Reduction(const ModelLayout& parts, const ModelLayout& sums, Rank self,
                     std::uint64_t most_room)
    : parts_(parts), sums_(sums), self_(self), cuts_(parts, sums, self) {
  std::uint64_t most_parts = 1;
  for (std::size_t i = 0; i < parts.layouts(); ++i)
    most_parts = std::max<std::uint64_t>(most_parts, parts_of_each(parts.layout(i).spec()));
  most_ = std::clamp(most_room, kLeastRoundBytes, kMostRoundBytes) / most_parts;
}

std::uint64_t Reduction::bytes_of(const Transit& transit) const {
  return transit.range.count * formats::bytes_of(parts_.dtype(transit.param));
}

std::vector<std::vector<Transit>> Reduction::rounds(std::span<const Transit> transits,
                                                    const Travels& travels) const {
  return cuts_.rounds(transits, most_, travels);
}

template <typename Take>
void Reduction::for_sends(const Transit& transit, const Take& take) const {
  const std::uint32_t param = transit.param;
  cuts_.for_pairs(transit, [&](const Part& source, const Part& target) {
    const FlatRange offered = overlap(source.held(self_), source.slice.local(transit.range));
    if (offered.count == 0) return;
    const FlatRange there = target.slice.local(source.slice.bounds(offered));
    if (there.count == 0) return;
    const Layout::ShardSpan span = target.shards_of(there);
    for (std::uint32_t shard = span.first; shard <= span.last; ++shard) {
      const Rank to = target.mesh().rank_of({shard, 0});
      if (to == self_) continue;
      for_common_runs(source, offered, target, target.held_by(shard),
                      [&](FlatRange run) { take(Message{to, {param, run}}); });
    }
  });
}

std::vector<Reduction::Message> Reduction::parts_of(const Transit& transit) const {
  std::vector<Message> parts;
  cuts_.for_pairs(transit, [&](const Part& source, const Part& target) {
    const FlatRange wanted = overlap(target.held(self_), target.slice.local(transit.range));
    if (wanted.count == 0) return;
    const FlatRange offered = source.slice.local(target.slice.bounds(wanted));
    if (offered.count == 0) return;
    Layout::ShardSpan span{0, 0};
    if (!source.replicated()) span = source.shards_of(offered);
    for (std::uint32_t shard = span.first; shard <= span.last; ++shard)
      for_common_runs(source, source.held_by(shard), target, wanted, [&](FlatRange run) {
        const std::size_t first = parts.size();
        for (const Rank rank : ranks_of(source, shard))
          parts.push_back({rank, {transit.param, run}, parts.size() == first});
      });
  });
  return parts;
}

std::uint64_t Reduction::sent_bytes(std::span<const Transit> transits) const {
  std::uint64_t bytes = 0;
  for (const Transit& transit : transits)
    for_sends(transit, [&](const Message& send) { bytes += bytes_of(send.part); });
  return bytes;
}

std::uint64_t Reduction::sent_at_once(std::span<const Transit> transits) const {
  std::uint64_t most = 0;
  for (const std::vector<Transit>& round : rounds(transits, {}))
    most = std::max(most, sent_bytes(round));
  return most;
}

std::uint64_t Reduction::room_bytes(std::span<const Transit> transits, Side parts_on) const {
  std::uint64_t most = 0;
  for (const std::vector<Transit>& round : rounds(transits, {})) {
    std::uint64_t bytes = 0;
    for (const Transit& transit : round)
      for (const Message& part : parts_of(transit))
        if (part.peer != self_ || parts_on == Side::device)
          bytes += staged_bytes(parts_.dtype(part.part.param), part.part.range.count);
    most = std::max(most, bytes);
  }
  return most;
}

Result<std::uint64_t> Reduction::run(Wire& wire, Kernels& kernels, const Buffer& room,
                                     std::span<const Transit> transits, const Ends& ends,
                                     const Travels& travels) const {
  std::uint64_t sent = 0;
  for (const std::vector<Transit>& round : rounds(transits, travels)) {
    if (round.empty()) continue;
    std::vector<SendBuffer> sends;
    std::vector<ReceiveBuffer> receives;
    std::vector<AddRange> adds;
    std::vector<libswap::Event> down;  // from a device
    std::uint64_t used = 0;
    const auto room_for = [&](const Message& one) {
      const DType dtype = parts_.dtype(one.part.param);
      const std::uint64_t first =
          std::exchange(used, used + staged_bytes(dtype, one.part.range.count));
      return room.sub(first, bytes_of(one.part)).as(dtype);
    };
    for (const Transit& transit : round) {
      for_sends(transit,
                [&](const Message& send) { sends.push_back({send.peer, ends.part(send.part)}); });
      for (const Message& one : parts_of(transit)) {
        Buffer part = one.peer == self_ ? ends.part(one.part) : room_for(one);
        if (one.peer != self_) {
          receives.push_back({one.peer, part});
        } else if (part.device != nullptr) {
          const Buffer there = std::exchange(part, room_for(one));
          down.push_back(libswap::copy(there, part, {}));
        }
        adds.push_back({part, ends.sum(one.part), one.first});
      }
    }
    for (const SendBuffer& send : sends) sent += send.data.size();
    Result<> exchanged;
    if (wire.world() > 1) exchanged = wire.exchange(std::move(sends), std::move(receives));
    libswap::all_of(down).wait();  // nothing is under way when this returns
    EBB_TRY(exchanged);
    kernels.add(adds, {}).wait();
  }
  return sent;
}

}  // namespace ebb::libmuon
