#include "ebb/libmuon/comm/meeting.h"

#include <algorithm>
#include <array>
#include <limits>
#include <map>
#include <string>
#include <utility>

#include "ebb/libmuon/comm/communicator.h"

namespace ebb::libmuon {
namespace {

// The sizes that one ordered pair of ranks hands over in one round, in the order of the calls.
struct Channel {
  std::vector<std::uint64_t> sent, received;
};

std::string rank_text(std::uint64_t rank) { return compose("rank {}", rank); }

Result<> check_round(std::span<const Message> messages, std::size_t rank, std::size_t world,
                     std::string_view verb) {
  std::uint64_t total = 0;
  for (const Message& message : messages) {
    if (index_of(message.peer) >= world)
      return Error{Code::usage, compose("exchange: {} {} {} in a world of {}", rank_text(rank),
                                        verb, rank_text(index_of(message.peer)), world)};
    if (message.memory != Message::Memory::taken)
      return Error{Code::usage, compose("exchange: {} {} {} {} bytes {}", rank_text(rank), verb,
                                        rank_text(index_of(message.peer)), message.bytes,
                                        message.memory == Message::Memory::no_address
                                            ? "at no address"
                                            : "in the memory of a device that is not taken")};
    if (message.bytes > kMostRoundBytes - total)
      return Error{
          Code::limit,
          compose("exchange: {} {} others more than 268435456 bytes (256 MiB) in one round",
                  rank_text(rank), verb)};
    total += message.bytes;
  }
  return {};
}

Result<> check_exchange(std::span<const Contribution> ranks) {
  std::map<std::pair<std::uint32_t, std::uint32_t>, Channel> channels;  // (from, to)
  for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
    EBB_TRY(check_messages(ranks[rank], Rank{rank}, static_cast<std::uint32_t>(ranks.size())));
    for (const Message& message : ranks[rank].sends)
      channels[{rank, index_of(message.peer)}].sent.push_back(message.bytes);
    for (const Message& message : ranks[rank].receives)
      channels[{index_of(message.peer), rank}].received.push_back(message.bytes);
  }
  for (const auto& [pair, channel] : channels)
    EBB_TRY(check_pair(Rank{pair.first}, Rank{pair.second}, channel.sent, channel.received));
  return {};
}

Result<std::vector<std::int64_t>> sum_all(std::span<const Contribution> ranks) {
  const std::size_t count = ranks.front().numbers.size();
  for (std::size_t rank = 1; rank < ranks.size(); ++rank)
    if (ranks[rank].numbers.size() != count)
      return Error{Code::layout, compose("sum: rank 0 brings {} numbers, {} brings {}", count,
                                         rank_text(rank), ranks[rank].numbers.size())};
  std::vector<std::int64_t> totals(count);
  for (std::size_t i = 0; i < count; ++i) {
    // Two's complement wraps back: only the total has to fit, not the partial sums.
    __extension__ __int128 total = 0;
    for (const Contribution& rank : ranks) total += rank.numbers[i];
    if (total > std::numeric_limits<std::int64_t>::max() ||
        total < std::numeric_limits<std::int64_t>::min())
      return Error{Code::limit, compose("sum: number {} does not fit 64 bits", i)};
    totals[i] = static_cast<std::int64_t>(total);
  }
  return totals;
}

}  // namespace

Message::Memory memory_of(const Communicator& ranks, const libswap::Buffer& buffer) {
  if (buffer.data == nullptr && !buffer.empty()) return Message::Memory::no_address;
  const bool taken = buffer.device == nullptr || ranks.takes(*buffer.device);
  return taken ? Message::Memory::taken : Message::Memory::foreign_device;
}

std::string_view name_of(Verb verb) {
  constexpr std::array<std::string_view, 3> kNames = {"agree", "sum", "exchange"};
  return kNames[static_cast<std::size_t>(verb)];
}

Result<Decision> decide(std::span<const Contribution> ranks) {
  for (std::size_t rank = 1; rank < ranks.size(); ++rank)
    if (ranks[rank].verb != ranks[0].verb)
      return Error{Code::layout,
                   compose("rank 0 calls {} while {} calls {}", name_of(ranks[0].verb),
                           rank_text(rank), name_of(ranks[rank].verb))};
  Decision decision;
  switch (ranks[0].verb) {
    case Verb::agree:
      decision.smallest = std::ranges::min_element(ranks, {}, &Contribution::value)->value;
      break;
    case Verb::sum: {
      EBB_TRY_ASSIGN(decision.totals, sum_all(ranks));
      break;
    }
    case Verb::exchange:
      EBB_TRY(check_exchange(ranks));
      break;
  }
  return decision;
}

Result<> check_messages(const Contribution& mine, Rank rank, std::uint32_t world) {
  EBB_TRY(check_round(mine.sends, index_of(rank), world, "sends to"));
  return check_round(mine.receives, index_of(rank), world, "receives from");
}

Result<> check_pair(Rank from, Rank to, std::span<const std::uint64_t> sent,
                    std::span<const std::uint64_t> expected) {
  const std::string where =
      compose("exchange from {} to {}: ", rank_text(index_of(from)), rank_text(index_of(to)));
  if (sent.size() != expected.size())
    return Error{Code::layout,
                 compose("{}{} buffers sent, {} expected", where, sent.size(), expected.size())};
  for (std::size_t i = 0; i < sent.size(); ++i)
    if (sent[i] != expected[i])
      return Error{Code::layout, compose("{}buffer {} has {} bytes, expected {}", where, i, sent[i],
                                         expected[i])};
  return {};
}

Error gave_up(Rank rank) { return {Code::peer, rank_text(index_of(rank)) + " gave up"}; }

Error ended(Rank rank, std::string_view how) {
  return {Code::peer, compose("{} is gone: {}", rank_text(index_of(rank)), how)};
}

std::string text_of(std::span<const Rank> ranks) {
  std::string who = ranks.size() == 1 ? "rank" : "ranks";
  for (const Rank rank : ranks)
    who += compose("{}{}", rank == ranks.front() ? " " : ", ", index_of(rank));
  return who;
}

Error silent(std::span<const Rank> ranks, Verb verb, std::chrono::milliseconds limit) {
  return {Code::peer,
          compose("{} kept the others waiting in {} for {} ms, which is the limit", text_of(ranks),
                  name_of(verb), limit.count()),
          "see what that rank does: gdb -p, py-spy dump"};
}

}  // namespace ebb::libmuon
