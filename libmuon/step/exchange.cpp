#include "ebb/libmuon/step/exchange.h"

#include <algorithm>
#include <optional>
#include <set>
#include <tuple>
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
  // The most of any rank, each element counted so often.
  std::uint64_t with(const Transit& transit, std::uint64_t weight) const {
    std::uint64_t most = 0;
    layout_.for_parts(transit, [&](const Part& part) {
      most =
          std::max(most, held_.with(part.number, shard_of(part), most_of(part, transit) * weight));
    });
    return most;
  }
  void add(const Transit& transit, std::uint64_t weight) {
    layout_.for_parts(transit, [&](const Part& part) {
      held_.add(part.number, shard_of(part), most_of(part, transit) * weight);
    });
  }

 private:
  static std::uint64_t most_of(const Part& part, const Transit& transit) {
    return std::min(part.slice.local(transit.range).count, part.largest());
  }
  static std::uint32_t shard_of(const Part& part) {
    const Layout::Spec& spec = part.layout.spec();
    return spec.policy == Policy::layer_wise ? spec.owners[part.tensor] : 0;
  }

  const ModelLayout& layout_;
  RankLoad held_;
};

// The tensor is held alike, shard by shard.
bool same_holders(const Part& from, const Part& to) {
  const Layout::Spec &a = from.layout.spec(), &b = to.layout.spec();
  if (a.policy != b.policy || a.split != b.split || a.mesh.shard_world != b.mesh.shard_world ||
      a.mesh.within.first != b.mesh.within.first || a.mesh.within.shards != b.mesh.within.shards)
    return false;
  if (a.policy == Policy::layer_wise) return a.owners[from.tensor] == b.owners[to.tensor];
  if (from.slice != to.slice) return false;
  if (a.policy == Policy::uneven_rows) return a.rows[from.tensor] == b.rows[to.tensor];
  return a.align_elems == b.align_elems;
}

}  // namespace

Exchange::Exchange(const ModelLayout& from, const ModelLayout& to, Rank self,
                   std::uint64_t most_round_bytes)
    : from_(from), to_(to), self_(self), most_round_bytes_(most_round_bytes) {}

std::uint64_t Exchange::bytes_of(const Transit& transit) const {
  const auto element = [&](const ModelLayout& end) {
    return formats::bytes_of(end.dtype(transit.param));
  };
  return transit.range.count * std::min(element(from_), element(to_));
}

bool Exchange::stays(const Transit& transit) const {
  bool stay = true;
  for_pairs(transit, [&](const Part& source, const Part& target) {
    const bool all_have_it =
        from_.parts(transit.param) == 1 || source.mesh().spread() == target.mesh().spread();
    stay = stay && ((source.replicated() && all_have_it) || same_holders(source, target));
  });
  return stay;
}

Rank Exchange::giver(const Part& source, std::uint32_t shard, std::uint32_t param, Rank to) const {
  if (!source.replicated()) return source.mesh().rank_of({shard, 0});
  const auto own = from_.part_with(param, to);
  EBB_CHECK(own.has_value());
  return source.mesh().rank_of(*own->mesh().place_of(to));
}

void Exchange::add_receives(const Transit& transit, std::vector<Message>& receives,
                            std::vector<Transit>& keeps) const {
  const std::uint32_t param = transit.param;
  for_pairs(transit, [&](const Part& source, const Part& target) {
    const FlatRange wanted = overlap(target.held(self_), target.slice.local(transit.range));
    if (wanted.count == 0) return;
    const auto mine = source.mesh().place_of(self_);
    const auto add = [&](std::uint32_t shard) {
      for_common_runs(source, source.held_by(shard), target, wanted, [&](FlatRange run) {
        if (mine && (source.replicated() || shard == mine->shard))
          keeps.push_back({param, run});
        else
          receives.push_back({giver(source, shard, param, self_), {param, run}});
      });
    };
    if (source.replicated()) return add(0);
    const FlatRange offered = source.slice.local(target.slice.bounds(wanted));
    if (offered.count == 0) return;
    const Layout::ShardSpan span = source.shards_of(offered);
    for (std::uint32_t shard = span.first; shard <= span.last; ++shard) add(shard);
  });
}

template <typename Take>
void Exchange::for_sends(const Transit& transit, const Take& take) const {
  const std::uint32_t param = transit.param;
  for_pairs(transit, [&](const Part& source, const Part& target) {
    const auto mine = source.mesh().place_of(self_);
    // Ranks above the first copy serve only themselves.
    if (!mine || (mine->copy != 0 && !source.replicated())) return;
    const FlatRange offered = overlap(source.held(self_), source.slice.local(transit.range));
    if (offered.count == 0 || stays(transit)) return;
    Layout::ShardSpan span{0, target.mesh().shard_world - 1};
    if (!target.replicated()) {
      const FlatRange there = target.slice.local(source.slice.bounds(offered));
      if (there.count == 0) return;
      span = target.shards_of(there);
    }
    for (std::uint32_t copy = 0; copy < target.mesh().replicas; ++copy)
      for (std::uint32_t shard = span.first; shard <= span.last; ++shard) {
        const Rank to = target.mesh().rank_of({shard, copy});
        const auto theirs = source.mesh().place_of(to);
        if (theirs && (source.replicated() || theirs->shard == mine->shard)) continue;
        if (source.replicated() && giver(source, 0, param, to) != self_) continue;
        for_common_runs(source, offered, target, target.held_by(shard),
                        [&](FlatRange run) { take(Message{to, {param, run}}); });
      }
  });
}

std::uint64_t Exchange::sent_bytes(std::span<const Transit> transits) const {
  std::uint64_t bytes = 0;
  for (const Transit& transit : transits)
    for_sends(transit, [&](const Message& send) { bytes += bytes_of(send.part); });
  return bytes;
}

std::vector<Transit> Exchange::given(std::span<const Transit> transits) const {
  std::vector<Transit> all;
  std::vector<Message> receives;
  for (const Transit& transit : transits) {
    for_sends(transit, [&](const Message& send) { all.push_back(send.part); });
    add_receives(transit, receives, all);
  }
  const auto key = [](const Transit& run) {
    return std::tuple(run.param, run.range.first, run.range.count);
  };
  std::ranges::sort(all, {}, key);
  const auto again = std::ranges::unique(all, {}, key);
  all.erase(again.begin(), again.end());
  return all;
}

std::vector<std::vector<Transit>> Exchange::rounds(std::span<const Transit> transits,
                                                   std::uint64_t most_bytes,
                                                   const Travels& travels) const {
  std::vector<std::vector<Transit>> rounds;
  std::optional<Load> senders, receivers;
  for (Transit rest : transits) {
    const std::uint64_t bytes = bytes_of({rest.param, {0, 1}});
    const std::uint64_t sent_each = copies(to_.part(rest.param, 0)) * bytes;
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
      if (!travels || travels(part.param)) rounds.back().push_back(part);
      rest.range = {part.range.first + part.range.count, rest.range.count - part.range.count};
    }
  }
  return rounds;
}

std::uint64_t Exchange::bounce_bytes(std::span<const Transit> transits,
                                     const Bounced& bounced) const {
  std::uint64_t most = 0;
  for (const std::vector<Transit>& round : rounds(transits, most_round_bytes_)) {
    std::uint64_t bytes = 0;
    std::set<std::pair<std::uint32_t, std::uint64_t>>
        down;  // param, first: once, however many get it
    std::vector<Message> receives;
    std::vector<Transit> keeps;
    for (const Transit& transit : round) {
      for_sends(transit, [&](const Message& send) {
        const auto& [param, range] = send.part;
        if (bounced.sent(send.part) && down.emplace(param, range.first).second)
          bytes += bytes_of(send.part);
      });
      add_receives(transit, receives, keeps);
    }
    for (const Message& receive : receives)
      if (bounced.received(receive.part)) bytes += bytes_of(receive.part);
    most = std::max(most, bytes);
  }
  return most;
}

Result<std::uint64_t> Exchange::run(Wire& wire, std::span<const Transit> transits, const Ends& ends,
                                    const Travels& travels) const {
  std::uint64_t sent = 0;
  std::vector<libswap::Event> kept;  // nothing is under way when this returns
  Result<> exchanged;
  for (const std::vector<Transit>& round : rounds(transits, most_round_bytes_, travels)) {
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
    const auto rests = [this](const Transit& transit) { return stays(transit); };
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
