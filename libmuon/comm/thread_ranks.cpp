// Ranks as threads of one process. Every collective is one meeting: each rank lays its request on
// the table and waits; the last to arrive decides the outcome for all, so an error reaches
// everybody.
#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <utility>

#include "ebb/libmuon/comm/communicator.h"
#include "ebb/libmuon/comm/meeting.h"
#include "ebb/libswap/sys/mutex.h"

namespace ebb::libmuon {
namespace {

using Clock = std::chrono::steady_clock;

struct Request {
  Brought brought;
  std::span<const SendBuffer> sends = {};
  std::span<const ReceiveBuffer> receives = {};
};

struct Copy {
  std::span<std::byte> to;
  std::span<const std::byte> from;
};

template <typename Buffers>
std::vector<Parcel> parcels_of(const Buffers& buffers) {
  std::vector<Parcel> parcels;
  for (const auto& buffer : buffers) parcels.push_back({buffer.peer, buffer.data.size()});
  return parcels;
}

// By receiving rank. REQUIRES: decide() found the exchange well.
std::vector<std::vector<Copy>> copies_of(const std::vector<Request>& requests) {
  using Pair = std::pair<std::uint32_t, std::uint32_t>;  // (from, to)
  std::map<Pair, std::vector<std::span<const std::byte>>> sent;
  for (std::uint32_t from = 0; from < requests.size(); ++from)
    for (const SendBuffer& send : requests[from].sends)
      sent[{from, index_of(send.peer)}].push_back(send.data);
  std::vector<std::vector<Copy>> copies(requests.size());
  std::map<Pair, std::size_t> taken;
  for (std::uint32_t to = 0; to < requests.size(); ++to)
    for (const ReceiveBuffer& receive : requests[to].receives) {
      const Pair pair{index_of(receive.peer), to};
      copies[to].push_back({receive.data, sent[pair][taken[pair]++]});
    }
  return copies;
}

// Shared by all ranks of one world. Invariant: the outcome of meeting k is written once, under the
// lock, when the last rank arrives, and cannot be overwritten before every rank has read it,
// because meeting k + 1 needs all of them.
class Table {
 public:
  Table(std::uint32_t world, std::chrono::milliseconds limit)
      : world_(world), limit_(limit), requests_(world), here_(world, false) {}

  std::uint32_t world() const { return world_; }
  std::chrono::milliseconds limit() const { return limit_; }

  Result<Decision> meet(Rank rank, Request request) {
    const libswap::MutexLock lock(mutex_);
    if (over_) return *over_;
    const Verb verb = request.brought.verb;
    requests_[index_of(rank)] = std::move(request);
    EBB_TRY(arrive(rank, Until::all_or_over));
    if (!decided_) return decided_.error();
    Decision decision = *decided_;
    if (verb == Verb::exchange) copy_and_part(rank);
    return decision;
  }

  // `rank` is gone. Meetings that everybody reached stay valid.
  void abandon(Rank rank) {
    const libswap::MutexLock lock(mutex_);
    end(gave_up(rank));
  }

 private:
  enum class Until : std::uint8_t { all_or_over, all };

  void end(Error why) EBB_REQUIRES(mutex_) {
    if (!over_) over_ = std::move(why);
    changed_.notify_all();
  }

  // Waits for everybody; the last one decides.
  Result<> arrive(Rank rank, Until until) EBB_REQUIRES(mutex_) {
    const std::uint64_t meeting = meeting_;
    if (arrived_ == 0) first_came_ = Clock::now();
    here_[index_of(rank)] = true;
    if (++arrived_ == world_) {
      if (until == Until::all_or_over) conclude();
      here_.assign(world_, false);
      arrived_ = 0;
      ++meeting_;
      changed_.notify_all();
      return {};
    }
    while (meeting_ == meeting && !(until == Until::all_or_over && over_)) wait(rank, until);
    if (meeting_ != meeting) return {};
    return *over_;
  }

  // The limit counts from when the first rank came: before, nobody waited for the others.
  void wait(Rank rank, Until until) EBB_REQUIRES(mutex_) {
    if (until == Until::all || limit_.count() == 0) return changed_.wait(mutex_);
    const auto left = first_came_ + limit_ - Clock::now();
    if (left.count() > 0) return changed_.wait_for(mutex_, left);
    std::vector<Rank> missing;
    for (std::uint32_t other = 0; other < world_; ++other)
      if (!here_[other]) missing.push_back(Rank{other});
    end(silent(missing, requests_[index_of(rank)].brought.verb, limit_));
  }

  void conclude() EBB_REQUIRES(mutex_) {
    std::vector<Brought> all;
    for (Request& request : requests_) all.push_back(std::move(request.brought));
    decided_ = decide(all);
    if (decided_ && all.front().verb == Verb::exchange) copies_ = copies_of(requests_);
  }

  // Receivers copy side by side. Nobody may leave while a peer still reads its memory, not even
  // after an abort: every rank is past the meeting, so all of them come here.
  void copy_and_part(Rank rank) EBB_REQUIRES(mutex_) {
    const std::vector<Copy> copies = std::move(copies_[index_of(rank)]);
    mutex_.unlock();
    for (const Copy& copy : copies)
      if (!copy.to.empty()) std::memmove(copy.to.data(), copy.from.data(), copy.to.size());
    mutex_.lock();
    EBB_CHECK(arrive(rank, Until::all).has_value());
  }

  const std::uint32_t world_;
  const std::chrono::milliseconds limit_;
  libswap::Mutex mutex_;
  libswap::Condition changed_;
  std::vector<Request> requests_ EBB_GUARDED_BY(mutex_);
  std::vector<bool> here_ EBB_GUARDED_BY(mutex_);  // who has come to the present meeting
  std::size_t arrived_ EBB_GUARDED_BY(mutex_) = 0;
  Clock::time_point first_came_ EBB_GUARDED_BY(mutex_);
  std::uint64_t meeting_ EBB_GUARDED_BY(mutex_) = 0;
  std::optional<Error> over_ EBB_GUARDED_BY(mutex_);  // why no meeting can take place any more
  Result<Decision> decided_ EBB_GUARDED_BY(mutex_) = Decision();
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

  std::chrono::milliseconds limit() const override { return table_->limit(); }

  Result<std::int64_t> agree(std::int64_t mine) override {
    EBB_TRY_ASSIGN(const Decision all, table_->meet(rank_, {{.verb = Verb::agree, .value = mine}}));
    return all.smallest;
  }
  Result<> sum(std::span<std::int64_t> numbers) override {
    Brought brought{.verb = Verb::sum, .numbers = {numbers.begin(), numbers.end()}};
    EBB_TRY_ASSIGN(const Decision all, table_->meet(rank_, {std::move(brought)}));
    std::ranges::copy(all.totals, numbers.begin());
    return {};
  }
  Result<> exchange(std::span<const SendBuffer> sends,
                    std::span<const ReceiveBuffer> receives) override {
    Brought brought{
        .verb = Verb::exchange, .sends = parcels_of(sends), .receives = parcels_of(receives)};
    EBB_TRY(table_->meet(rank_, {std::move(brought), sends, receives}));
    return {};
  }
  void abort() override { table_->abandon(rank_); }

 private:
  std::shared_ptr<Table> table_;
  Rank rank_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_thread_ranks(std::uint32_t world,
                                                             std::chrono::milliseconds limit) {
  const auto table = std::make_shared<Table>(world, limit);
  std::vector<std::unique_ptr<Communicator>> ranks;
  ranks.reserve(world);
  for (std::uint32_t rank = 0; rank < world; ++rank)
    ranks.push_back(std::make_unique<ThreadRank>(table, Rank{rank}));
  return ranks;
}

}  // namespace ebb::libmuon
