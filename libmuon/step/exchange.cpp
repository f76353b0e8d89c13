#include "ebb/libmuon/step/exchange.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "ebb/libmuon/plan/rank_load.h"

namespace ebb::libmuon {
namespace {

using Part = ModelLayout::Part;

// How many ranks each element goes to.
std::uint64_t copies(const Part& part) {
  return part.replicated() ? part.mesh().ranks() : part.mesh().replicas;
}

// What a rank may hold of what is added: its owner of whole parameters, anybody of others.
class Load {
 public:
  explicit Load(const ModelLayout& layout) : layout_(layout), held_(layout) {}
  // Each of its elements counts so much.
  std::uint64_t with(const Transit& transit, std::uint64_t weight) const {
    return held_.with(transit.param, shard_of(transit), most_of(transit) * weight);
  }
  void add(const Transit& transit, std::uint64_t weight) {
    held_.add(transit.param, shard_of(transit), most_of(transit) * weight);
  }

 private:
  std::uint64_t most_of(const Transit& transit) const {
    return std::min(transit.range.count, layout_.of(transit.param).largest());
  }
  std::uint32_t shard_of(const Transit& transit) const {
    const Part part = layout_.of(transit.param);
    const Layout::Spec& spec = part.layout.spec();
    return spec.policy == Policy::layer_wise ? spec.owners[part.tensor] : 0;
  }

  const ModelLayout& layout_;
  RankLoad held_;
};

}  // namespace

Exchange::Exchange(const ModelLayout& from, const ModelLayout& to, Rank self)
    : from_(from), to_(to), self_(self) {}

std::uint64_t Exchange::bytes_of(const Transit& transit) const {
  const auto element = [&](const ModelLayout& end) {
    return formats::bytes_of(end.dtype(transit.param));
  };
  return transit.range.count * std::min(element(from_), element(to_));
}

bool Exchange::stays(std::uint32_t param) const {
  const Part from = from_.of(param), to = to_.of(param);
  if (from.replicated()) return true;
  const Layout::Spec &a = from.layout.spec(), &b = to.layout.spec();
  if (a.policy != b.policy || a.mesh.shard_world != b.mesh.shard_world ||
      a.mesh.within.first != b.mesh.within.first || a.mesh.within.shards != b.mesh.within.shards)
    return false;
  if (a.policy == Policy::layer_wise) return a.owners[from.tensor] == b.owners[to.tensor];
  if (a.policy == Policy::uneven_rows) return a.rows[from.tensor] == b.rows[to.tensor];
  return a.align_elems == b.align_elems;
}

void Exchange::add_receives(const Transit& transit, std::vector<Message>& receives,
                            std::vector<Transit>& keeps) const {
  const Part source = from_.of(transit.param);
  const FlatRange wanted = overlap(to_.held(transit.param, self_), transit.range);
  if (wanted.count == 0) return;
  if (source.replicated()) return keeps.push_back({transit.param, wanted});
  const auto mine = source.mesh().place_of(self_);
  const Layout::ShardSpan span = source.shards_of(wanted);
  for (std::uint32_t shard = span.first; shard <= span.last; ++shard) {
    const FlatRange part = overlap(source.held_by(shard), wanted);
    if (part.count == 0) continue;
    if (mine && shard == mine->shard)
      keeps.push_back({transit.param, part});
    else
      receives.push_back({source.mesh().rank_of({shard, 0}), {transit.param, part}});
  }
}

template <typename Take>
void Exchange::for_sends(const Transit& transit, const Take& take) const {
  const Part source = from_.of(transit.param), target = to_.of(transit.param);
  const auto mine = source.mesh().place_of(self_);
  // Ranks above the first copy serve only themselves.
  if (!mine || mine->copy != 0 || stays(transit.param)) return;
  const FlatRange offered = overlap(source.held(self_), transit.range);
  if (offered.count == 0) return;
  Layout::ShardSpan span{0, target.mesh().shard_world - 1};
  if (!target.replicated()) span = target.shards_of(offered);
  for (std::uint32_t copy = 0; copy < target.mesh().replicas; ++copy)
    for (std::uint32_t shard = span.first; shard <= span.last; ++shard) {
      const FlatRange part = overlap(target.held_by(shard), offered);
      if (part.count == 0) continue;
      const Rank to = target.mesh().rank_of({shard, copy});
      const auto theirs = source.mesh().place_of(to);
      if (!theirs || theirs->shard != mine->shard) take(Message{to, {transit.param, part}});
    }
}

std::uint64_t Exchange::sent_bytes(std::span<const Transit> transits) const {
  std::uint64_t bytes = 0;
  for (const Transit& transit : transits)
    for_sends(transit, [&](const Message& send) { bytes += bytes_of(send.part); });
  return bytes;
}

std::vector<std::vector<Transit>> Exchange::rounds(std::span<const Transit> transits,
                                                   std::uint64_t most_bytes) const {
  std::vector<std::vector<Transit>> rounds;
  std::optional<Load> senders, receivers;
  for (Transit rest : transits) {
    const std::uint64_t bytes = bytes_of({rest.param, {0, 1}});
    const std::uint64_t sent_each = copies(to_.of(rest.param)) * bytes;
    const std::uint64_t most_at_once = std::max<std::uint64_t>(1, most_bytes / sent_each);
    while (rest.range.count > 0) {
      const Transit part{rest.param, {rest.range.first, std::min(rest.range.count, most_at_once)}};
      if (rounds.empty() || senders->with(part, sent_each) > most_bytes ||
          receivers->with(part, bytes) > most_bytes) {
        rounds.emplace_back();
        senders.emplace(from_);
        receivers.emplace(to_);
      }
      senders->add(part, sent_each);
      receivers->add(part, bytes);
      rounds.back().push_back(part);
      rest.range = {part.range.first + part.range.count, rest.range.count - part.range.count};
    }
  }
  return rounds;
}

std::uint64_t Exchange::bounce_bytes(std::span<const Transit> transits,
                                     const Bounced& bounced) const {
  std::uint64_t most = 0;
  for (const std::vector<Transit>& round : rounds(transits, kMostRoundBytes)) {
    std::uint64_t bytes = 0;
    std::set<std::pair<std::uint32_t, std::uint64_t>>
        down;  // param, first: once, however many get it
    std::vector<Message> receives;
    std::vector<Transit> keeps;
    for (const Transit& transit : round) {
      for_sends(transit, [&](const Message& send) {
        const auto& [param, range] = send.part;
        if (bounced.sent(param) && down.emplace(param, range.first).second)
          bytes += bytes_of(send.part);
      });
      add_receives(transit, receives, keeps);
    }
    for (const Message& receive : receives)
      if (bounced.received(receive.part.param)) bytes += bytes_of(receive.part);
    most = std::max(most, bytes);
  }
  return most;
}

Result<std::uint64_t> Exchange::run(Wire& wire, std::span<const Transit> transits,
                                    const Ends& ends) const {
  std::uint64_t sent = 0;
  std::vector<libswap::Event> kept;  // nothing is under way when this returns
  Result<> exchanged;
  for (const std::vector<Transit>& round : rounds(transits, kMostRoundBytes)) {
    std::vector<Message> sends, receives;
    std::vector<Transit> keeps;
    for (const Transit& transit : round) {
      for_sends(transit, [&](const Message& send) { sends.push_back(send); });
      add_receives(transit, receives, keeps);
    }
    for (const Transit& keep : keeps) {
      const auto to = ends.target(keep);
      if (const auto from = ends.source(keep); !to.empty() && from.data != to.data)
        kept.push_back(libswap::copy(from, to, {}));
    }
    const auto rests = [this](const Transit& transit) { return stays(transit.param); };
    if (wire.world() == 1 || std::ranges::all_of(round, rests)) continue;
    std::vector<SendBuffer> outgoing;
    for (const Message& send : sends) {
      outgoing.push_back({send.peer, ends.source(send.part)});
      sent += outgoing.back().data.size();
    }
    std::vector<ReceiveBuffer> incoming;
    for (const Message& receive : receives)
      incoming.push_back({receive.peer, ends.target(receive.part)});
    exchanged = wire.exchange(std::move(outgoing), std::move(incoming));
    if (!exchanged) break;
  }
  libswap::all_of(kept).wait();
  EBB_TRY(exchanged);
  return sent;
}

}  // namespace ebb::libmuon
