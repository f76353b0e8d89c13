#include "ebb/libmuon/step/exchange.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

namespace ebb::libmuon {
namespace {

bool replicated(const Layout& layout) { return layout.spec().policy == Policy::replicated; }

// The most that one rank holds of a run of `count` elements of a tensor.
std::uint64_t most_of_a_rank(const Layout& layout, std::uint32_t tensor, std::uint64_t count) {
  const Policy policy = layout.spec().policy;
  if (policy != Policy::zero3 && policy != Policy::rows) return count;
  // All shards but the last ones hold as much as the first.
  return std::min(count, layout.held(tensor, Rank{0}).count);
}

// How many ranks each element goes to.
std::uint64_t copies(const Layout& layout) {
  const formats::Mesh& mesh = layout.spec().mesh;
  return replicated(layout) ? mesh.world() : mesh.replicas;
}

// The most that a rank may hold of what is added: of whole tensors their owner does, of others
// anybody.
class Load {
 public:
  explicit Load(const Layout& layout) : layout_(&layout) {}
  std::uint64_t with(const Transit& part, std::uint64_t times) {
    return *place_of(part) + most(part) * times;
  }
  void add(const Transit& part, std::uint64_t times) { *place_of(part) += most(part) * times; }

 private:
  std::uint64_t most(const Transit& part) const {
    return most_of_a_rank(*layout_, part.param, part.range.count);
  }
  std::uint64_t* place_of(const Transit& part) {
    if (layout_->spec().policy != Policy::layer_wise) return &anybody_;
    return &owners_[layout_->spec().owners[part.param]];
  }

  const Layout* layout_;
  std::uint64_t anybody_ = 0;
  std::map<std::uint32_t, std::uint64_t> owners_;
};

// Whether every rank has already what it is to have.
bool stays(const Layout& from, const Layout& to) {
  const Layout::Spec &a = from.spec(), &b = to.spec();
  if (a.policy == Policy::replicated) return true;
  return a.policy == b.policy && a.mesh.shard_world == b.mesh.shard_world &&
         a.align_elems == b.align_elems && a.owners == b.owners;
}

}  // namespace

Exchange::Exchange(const Layout& from, const Layout& to, Rank self)
    : from_(from), to_(to), self_(self), stays_(stays(from, to)) {
  EBB_CHECK(from.spec().mesh.world() == to.spec().mesh.world());
}

void Exchange::add_receives(const Transit& transit, std::vector<Message>& receives,
                            std::vector<Transit>& keeps) const {
  const FlatRange wanted = overlap(to_.held(transit.param, self_), transit.range);
  if (wanted.count == 0) return;
  if (replicated(from_)) return keeps.push_back({transit.param, wanted});
  const std::uint32_t mine = from_.spec().mesh.shard_of(self_);
  const Layout::ShardSpan span = from_.shards_of(transit.param, wanted);
  for (std::uint32_t shard = span.first; shard <= span.last; ++shard) {
    const FlatRange part = overlap(from_.held(transit.param, Rank{shard}), wanted);
    if (part.count == 0) continue;
    if (shard == mine)
      keeps.push_back({transit.param, part});
    else
      receives.push_back({Rank{shard}, {transit.param, part}});
  }
}

template <typename Take>
void Exchange::for_sends(const Transit& transit, const Take& take) const {
  const formats::Mesh& source = from_.spec().mesh;
  const std::uint32_t mine = source.shard_of(self_);
  // Ranks above the first copy serve only themselves.
  if (stays_ || index_of(self_) != mine) return;
  const FlatRange offered = overlap(from_.held(transit.param, self_), transit.range);
  if (offered.count == 0) return;
  const formats::Mesh& target = to_.spec().mesh;
  Layout::ShardSpan span{0, target.shard_world - 1};
  if (!replicated(to_)) span = to_.shards_of(transit.param, offered);
  for (std::uint32_t copy = 0; copy < target.replicas; ++copy)
    for (std::uint32_t shard = span.first; shard <= span.last; ++shard) {
      const Rank to{copy * target.shard_world + shard};
      const FlatRange part = overlap(to_.held(transit.param, to), offered);
      if (part.count > 0 && source.shard_of(to) != mine) take(Message{to, {transit.param, part}});
    }
}

std::uint64_t Exchange::sent_bytes(std::span<const Transit> transits) const {
  std::uint64_t elems = 0;
  for (const Transit& transit : transits)
    for_sends(transit, [&](const Message& send) { elems += send.part.range.count; });
  return elems * sizeof(float);
}

std::vector<std::vector<Transit>> Exchange::rounds(std::span<const Transit> transits,
                                                   std::uint64_t most_bytes) const {
  const std::uint64_t most = most_bytes / sizeof(float);
  const std::uint64_t sent_each = copies(to_);
  const std::uint64_t most_at_once = std::max<std::uint64_t>(1, most / sent_each);
  std::vector<std::vector<Transit>> rounds;
  Load senders(from_), receivers(to_);
  for (Transit rest : transits)
    while (rest.range.count > 0) {
      const Transit part{rest.param, {rest.range.first, std::min(rest.range.count, most_at_once)}};
      const bool fits = senders.with(part, sent_each) <= most && receivers.with(part, 1) <= most;
      if (rounds.empty() || !fits) {
        rounds.emplace_back();
        senders = Load(from_);
        receivers = Load(to_);
      }
      senders.add(part, sent_each);
      receivers.add(part, 1);
      rounds.back().push_back(part);
      rest.range = {part.range.first + part.range.count, rest.range.count - part.range.count};
    }
  return rounds;
}

std::uint64_t Exchange::bounce_bytes(std::span<const Transit> transits,
                                     const Bounced& bounced) const {
  std::uint64_t most = 0;
  for (const std::vector<Transit>& round : rounds(transits, kMostRoundBytes)) {
    std::uint64_t elems = 0;
    std::set<std::pair<std::uint32_t, std::uint64_t>>
        down;  // param, first: once, however many get it
    std::vector<Message> receives;
    std::vector<Transit> keeps;
    for (const Transit& transit : round) {
      for_sends(transit, [&](const Message& send) {
        const auto& [param, range] = send.part;
        if (bounced.sent(param) && down.emplace(param, range.first).second) elems += range.count;
      });
      add_receives(transit, receives, keeps);
    }
    for (const Message& receive : receives)
      if (bounced.received(receive.part.param)) elems += receive.part.range.count;
    most = std::max(most, elems);
  }
  return most * sizeof(float);
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
    if (wire.world() == 1 || stays_) continue;
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
