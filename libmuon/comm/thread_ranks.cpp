// Ranks as threads of one process. Every collective is one meeting: each rank lays its request on
// the table and waits; the last to arrive decides the outcome for all, so an error reaches
// everybody.
#include <algorithm>
#include <array>
#include <cstring>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "ebb/libmuon/comm/communicator.h"
#include "ebb/libswap/sys/mutex.h"

namespace ebb::libmuon {
namespace {

enum class Verb : std::uint8_t { agree, sum, exchange };

std::string_view name_of(Verb verb) {
  constexpr std::array<std::string_view, 3> kNames = {"agree", "sum", "exchange"};
  return kNames[static_cast<std::size_t>(verb)];
}

struct Request {
  Verb verb = Verb::agree;
  std::int64_t value = 0;
  std::span<std::int64_t> numbers = {};
  std::span<const SendBuffer> sends = {};
  std::span<const ReceiveBuffer> receives = {};
};

struct Copy {
  std::span<std::byte> to;
  std::span<const std::byte> from;
};

// What one ordered pair of ranks hands over in one round, in the order of the calls.
struct Channel {
  std::vector<std::span<const std::byte>> sent;
  std::vector<std::span<std::byte>> received;
};
using Channels = std::map<std::pair<std::uint32_t, std::uint32_t>, Channel>;  // (from, to)

std::string rank_text(std::uint64_t rank) { return compose("rank {}", rank); }

template <typename Buffers>
Result<> check_round(const Buffers& buffers, std::size_t rank, std::size_t world,
                     std::string_view verb) {
  std::uint64_t total = 0;
  for (const auto& buffer : buffers) {
    if (index_of(buffer.peer) >= world)
      return Error{Code::usage, compose("exchange: {} {} {} in a world of {}", rank_text(rank),
                                        verb, rank_text(index_of(buffer.peer)), world)};
    if (buffer.data.size() > kMostRoundBytes - total)
      return Error{
          Code::limit,
          compose("exchange: {} {} others more than 268435456 bytes (256 MiB) in one round",
                  rank_text(rank), verb)};
    total += buffer.data.size();
  }
  return {};
}

Result<Channels> match(const std::vector<Request>& requests) {
  Channels channels;
  for (std::uint32_t rank = 0; rank < requests.size(); ++rank) {
    const Request& request = requests[rank];
    EBB_TRY(check_round(request.sends, rank, requests.size(), "sends to"));
    EBB_TRY(check_round(request.receives, rank, requests.size(), "receives from"));
    for (const SendBuffer& send : request.sends)
      channels[{rank, index_of(send.peer)}].sent.push_back(send.data);
    for (const ReceiveBuffer& receive : request.receives)
      channels[{index_of(receive.peer), rank}].received.push_back(receive.data);
  }
  for (const auto& [pair, channel] : channels) {
    const std::string where =
        compose("exchange from {} to {}: ", rank_text(pair.first), rank_text(pair.second));
    if (channel.sent.size() != channel.received.size())
      return Error{Code::layout, compose("{}{} buffers sent, {} expected", where,
                                         channel.sent.size(), channel.received.size())};
    for (std::size_t i = 0; i < channel.sent.size(); ++i)
      if (channel.sent[i].size() != channel.received[i].size())
        return Error{Code::layout, compose("{}buffer {} has {} bytes, expected {}", where, i,
                                           channel.sent[i].size(), channel.received[i].size())};
  }
  return channels;
}

Result<> sum_all(const std::vector<Request>& requests) {
  const std::size_t count = requests.front().numbers.size();
  for (std::size_t rank = 1; rank < requests.size(); ++rank)
    if (requests[rank].numbers.size() != count)
      return Error{Code::layout, compose("sum: rank 0 brings {} numbers, {} brings {}", count,
                                         rank_text(rank), requests[rank].numbers.size())};
  std::vector<std::int64_t> totals(count);
  for (std::size_t i = 0; i < count; ++i) {
    // Two's complement wraps back: only the total has to fit, not the partial sums.
    __extension__ __int128 total = 0;
    for (const Request& request : requests) total += request.numbers[i];
    if (total > std::numeric_limits<std::int64_t>::max() ||
        total < std::numeric_limits<std::int64_t>::min())
      return Error{Code::limit, compose("sum: number {} does not fit 64 bits", i)};
    totals[i] = static_cast<std::int64_t>(total);
  }
  for (const Request& request : requests)
    std::copy(totals.begin(), totals.end(), request.numbers.begin());
  return {};
}

// Shared by all ranks of one world. Invariant: the outcome of meeting k is written once, under the
// lock, when the last rank arrives, and cannot be overwritten before every rank has read it,
// because meeting k + 1 needs all of them.
class Table {
 public:
  explicit Table(std::uint32_t world) : world_(world), requests_(world) {}

  std::uint32_t world() const { return world_; }

  Result<std::int64_t> meet(Rank rank, const Request& request) {
    const libswap::MutexLock lock(mutex_);
    if (abandoned_) return peer_error();
    requests_[index_of(rank)] = request;
    EBB_TRY(arrive(Abort::heeded));
    if (outcome_.has_value()) return *outcome_;
    const std::int64_t smallest = smallest_;
    if (request.verb == Verb::exchange) EBB_TRY(copy_and_part(rank));
    return smallest;
  }

  // `rank` is gone. Meetings that everybody reached stay valid.
  void abandon(Rank rank) {
    const libswap::MutexLock lock(mutex_);
    if (!abandoned_) abandoned_ = rank;
    changed_.notify_all();
  }

 private:
  enum class Abort : std::uint8_t { heeded, ignored };

  Error peer_error() const EBB_REQUIRES(mutex_) {
    return Error{Code::peer, rank_text(index_of(*abandoned_)) + " gave up"};
  }

  // Waits for everybody; the last one decides.
  Result<> arrive(Abort abort) EBB_REQUIRES(mutex_) {
    const std::uint64_t meeting = meeting_;
    if (++arrived_ == requests_.size()) {
      if (abort == Abort::heeded) decide();
      arrived_ = 0;
      ++meeting_;
      changed_.notify_all();
      return {};
    }
    while (meeting_ == meeting && !(abort == Abort::heeded && abandoned_)) changed_.wait(mutex_);
    if (meeting_ != meeting) return {};
    return peer_error();
  }

  void decide() EBB_REQUIRES(mutex_) {
    const auto decided = outcome();
    outcome_.reset();
    if (!decided) outcome_ = decided.error();
  }

  Result<> outcome() EBB_REQUIRES(mutex_) {
    for (std::size_t rank = 1; rank < requests_.size(); ++rank)
      if (requests_[rank].verb != requests_[0].verb)
        return Error{Code::layout,
                     compose("rank 0 calls {} while {} calls {}", name_of(requests_[0].verb),
                             rank_text(rank), name_of(requests_[rank].verb))};
    if (requests_[0].verb == Verb::sum) return sum_all(requests_);
    if (requests_[0].verb == Verb::exchange) return plan_copies();
    smallest_ = std::ranges::min_element(requests_, {}, &Request::value)->value;
    return {};
  }

  Result<> plan_copies() EBB_REQUIRES(mutex_) {
    EBB_TRY_ASSIGN(const Channels channels, match(requests_));
    copies_.assign(requests_.size(), {});
    for (const auto& [pair, channel] : channels)
      for (std::size_t i = 0; i < channel.sent.size(); ++i)
        copies_[pair.second].push_back({channel.received[i], channel.sent[i]});
    return {};
  }

  // Receivers copy side by side. Nobody may leave while a peer still reads its memory, not even
  // after an abort: every rank is past the meeting, so all of them come here.
  Result<> copy_and_part(Rank rank) EBB_REQUIRES(mutex_) {
    const std::vector<Copy> copies = std::move(copies_[index_of(rank)]);
    mutex_.unlock();
    for (const Copy& copy : copies)
      if (!copy.to.empty()) std::memmove(copy.to.data(), copy.from.data(), copy.to.size());
    mutex_.lock();
    return arrive(Abort::ignored);
  }

  const std::uint32_t world_;
  libswap::Mutex mutex_;
  libswap::Condition changed_;
  std::vector<Request> requests_ EBB_GUARDED_BY(mutex_);
  std::size_t arrived_ EBB_GUARDED_BY(mutex_) = 0;
  std::uint64_t meeting_ EBB_GUARDED_BY(mutex_) = 0;
  std::optional<Rank> abandoned_ EBB_GUARDED_BY(mutex_);
  std::optional<Error> outcome_ EBB_GUARDED_BY(mutex_);
  std::int64_t smallest_ EBB_GUARDED_BY(mutex_) = 0;
  std::vector<std::vector<Copy>> copies_ EBB_GUARDED_BY(mutex_);
};

class ThreadRank : public Communicator {
 public:
  ThreadRank(std::shared_ptr<Table> table, Rank rank) : table_(std::move(table)), rank_(rank) {}
  // A rank that is destroyed early would leave the others waiting.
  ~ThreadRank() override { table_->abandon(rank_); }
  ThreadRank(const ThreadRank&) = delete;
  ThreadRank& operator=(const ThreadRank&) = delete;

  Rank rank() const override { return rank_; }
  std::uint32_t world() const override { return table_->world(); }

  Result<std::int64_t> agree(std::int64_t mine) override {
    return table_->meet(rank_, {.verb = Verb::agree, .value = mine});
  }
  Result<> sum(std::span<std::int64_t> numbers) override {
    EBB_TRY(table_->meet(rank_, {.verb = Verb::sum, .numbers = numbers}));
    return {};
  }
  Result<> exchange(std::span<const SendBuffer> sends,
                    std::span<const ReceiveBuffer> receives) override {
    EBB_TRY(table_->meet(rank_, {.verb = Verb::exchange, .sends = sends, .receives = receives}));
    return {};
  }
  void abort() override { table_->abandon(rank_); }

 private:
  std::shared_ptr<Table> table_;
  Rank rank_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_thread_ranks(std::uint32_t world) {
  const auto table = std::make_shared<Table>(world);
  std::vector<std::unique_ptr<Communicator>> ranks;
  ranks.reserve(world);
  for (std::uint32_t rank = 0; rank < world; ++rank)
    ranks.push_back(std::make_unique<ThreadRank>(table, Rank{rank}));
  return ranks;
}

}  // namespace ebb::libmuon
