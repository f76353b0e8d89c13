// Ranks as threads of one process. Every collective is one meeting: each rank lays its request on
// the table and waits; the last to arrive decides the outcome for all, so an error reaches
// everybody.
#include <algorithm>
#include <map>
#include <optional>
#include <utility>

#include "ebb/libmuon/comm/communicator.h"
#include "ebb/libmuon/comm/home_ranks.h"
#include "ebb/libmuon/comm/meeting.h"
#include "ebb/libswap/sys/mutex.h"
#include "ebb/libswap/sys/when_memory.h"

namespace ebb::libmuon {
namespace {

using Clock = std::chrono::steady_clock;

struct Request {
  Contribution contribution;
  std::span<const SendBuffer> sends = {};
  std::span<const ReceiveBuffer> receives = {};
};

struct Copy {
  libswap::Buffer to, from;
  std::uint32_t sender = 0;
};

template <typename Buffers>
std::vector<Message> messages_of(const Communicator& ranks, const Buffers& buffers) {
  std::vector<Message> messages;
  for (const auto& buffer : buffers)
    messages.push_back({buffer.peer, buffer.data.size(), memory_of(ranks, buffer.data)});
  return messages;
}

// By receiving rank. REQUIRES: decide() found the exchange well.
std::vector<std::vector<Copy>> copies_of(const std::vector<Request>& requests) {
  using Pair = std::pair<std::uint32_t, std::uint32_t>;  // (from, to)
  std::map<Pair, std::vector<libswap::Buffer>> sent;
  for (std::uint32_t from = 0; from < requests.size(); ++from)
    for (const SendBuffer& send : requests[from].sends)
      sent[{from, index_of(send.peer)}].push_back(send.data);
  std::vector<std::vector<Copy>> copies(requests.size());
  std::map<Pair, std::size_t> taken;
  for (std::uint32_t to = 0; to < requests.size(); ++to)
    for (const ReceiveBuffer& receive : requests[to].receives) {
      const Pair pair{index_of(receive.peer), to};
      copies[to].push_back({receive.data, sent[pair][taken[pair]++], pair.first});
    }
  return copies;
}

// Where the ranks of one communicator, the first or a duplicate, meet.
struct Table {
  explicit Table(std::uint32_t world)
      : requests(world), here(world, false), through(world), duplicated(world, 0) {}

  std::vector<Request> requests;
  std::vector<bool> here;  // who has come to the present meeting
  std::size_t arrived = 0;
  Clock::time_point first_came;
  std::uint64_t meeting = 0;
  std::optional<Error> over;  // why nobody can meet here any more
  Result<Decision> decided = Decision();
  std::vector<std::vector<Copy>> copies;
  std::vector<std::vector<libswap::Event>> through;  // by rank: when copies of it have taken place
  std::vector<std::size_t> duplicated;  // by rank: how often it duplicated this communicator
  std::vector<std::shared_ptr<Table>> duplicates;
};

// Shared by all ranks of one world. Invariant: the outcome of a table's meeting k is written once,
// under the lock, when the last rank arrives, and cannot be overwritten before every rank has read
// it, because meeting k + 1 needs all of them.
class Tables {
 public:
  Tables(std::uint32_t world, std::chrono::milliseconds limit) : world_(world), limit_(limit) {}

  std::uint32_t world() const { return world_; }
  std::chrono::milliseconds limit() const { return limit_; }

  Result<Decision> meet(Table& table, Rank rank, Request request) {
    const libswap::MutexLock lock(mutex_);
    EBB_TRY(come(table, rank, std::move(request)));
    return *table.decided;
  }
  Result<libswap::Event> exchange(Table& table, Rank rank, Request request) {
    const libswap::MutexLock lock(mutex_);
    EBB_TRY(come(table, rank, std::move(request)));
    return copy_and_part(table, rank);
  }

  // The n-th duplicate of one rank is the n-th of all.
  Result<std::shared_ptr<Table>> duplicate(Table& table, Rank rank) {
    const libswap::MutexLock lock(mutex_);
    EBB_TRY(still_on(table));
    const std::size_t number = table.duplicated[index_of(rank)]++;
    if (number == table.duplicates.size())
      table.duplicates.push_back(std::make_shared<Table>(world_));
    return table.duplicates[number];
  }

  // `rank` is gone. Meetings that everybody reached stay valid.
  void abandon(Rank rank) {
    const libswap::MutexLock lock(mutex_);
    end(over_, gave_up(rank));
  }
  void abandon(Table& table, Rank rank) {
    const libswap::MutexLock lock(mutex_);
    end(table.over, gave_up(rank));
  }

 private:
  enum class Until : std::uint8_t { all_or_over, all };

  Result<> still_on(const Table& table) const EBB_REQUIRES(mutex_) {
    if (over_) return *over_;
    if (table.over) return *table.over;
    return {};
  }

  void end(std::optional<Error>& over, Error why) EBB_REQUIRES(mutex_) {
    if (!over) over = std::move(why);
    changed_.notify_all();
  }

  // To the present meeting, which decides well.
  Result<> come(Table& table, Rank rank, Request request) EBB_REQUIRES(mutex_) {
    EBB_TRY(still_on(table));
    table.requests[index_of(rank)] = std::move(request);
    EBB_TRY(arrive(table, rank, Until::all_or_over));
    if (!table.decided) return table.decided.error();
    return {};
  }

  // Waits for everybody; the last one decides.
  Result<> arrive(Table& table, Rank rank, Until until) EBB_REQUIRES(mutex_) {
    const std::uint64_t meeting = table.meeting;
    if (table.arrived == 0) table.first_came = Clock::now();
    table.here[index_of(rank)] = true;
    if (++table.arrived == world_) {
      if (until == Until::all_or_over) conclude(table);
      table.here.assign(world_, false);
      table.arrived = 0;
      ++table.meeting;
      changed_.notify_all();
      return {};
    }
    while (table.meeting == meeting) {
      if (until == Until::all_or_over) EBB_TRY(still_on(table));
      wait(table, rank, until);
    }
    return {};
  }

  // The limit counts from when the first rank came: before, nobody waited for the others.
  void wait(const Table& table, Rank rank, Until until) EBB_REQUIRES(mutex_) {
    if (until == Until::all || limit_.count() == 0) return changed_.wait(mutex_);
    const auto left = table.first_came + limit_ - Clock::now();
    if (left.count() > 0) return changed_.wait_for(mutex_, left);
    libswap::when_memory([&]() EBB_REQUIRES(mutex_) {
      end(over_, silent(missing(table), table.requests[index_of(rank)].contribution.verb, limit_));
    });
  }
  std::vector<Rank> missing(const Table& table) const {
    std::vector<Rank> missing;
    for (std::uint32_t rank = 0; rank < world_; ++rank)
      if (!table.here[rank]) missing.push_back(Rank{rank});
    return missing;
  }

  // All have come: it has to be decided.
  static void conclude(Table& table) {
    std::vector<Contribution> all;
    libswap::when_memory([&] { all.reserve(table.requests.size()); });
    for (Request& request : table.requests) all.push_back(std::move(request.contribution));
    libswap::when_memory([&] { table.decided = decide(all); });
    if (table.decided && all.front().verb == Verb::exchange)
      libswap::when_memory([&] { table.copies = copies_of(table.requests); });
  }

  // Receivers copy side by side. Nobody may leave while a peer still reads its memory, not even
  // after an abort: every rank is past the meeting, so all of them come here.
  // What a device copies may take place later: behind the event.
  libswap::Event copy_and_part(Table& table, Rank rank) noexcept EBB_REQUIRES(mutex_) {
    for (const Copy& copy : std::exchange(table.copies[index_of(rank)], {})) {
      const libswap::Event copied = copy_beside_others(copy);
      if (copied.passed()) continue;
      for (const std::uint32_t each : {index_of(rank), copy.sender})
        libswap::add_when_memory(table.through[each], copied);
    }
    EBB_CHECK(arrive(table, rank, Until::all).has_value());
    const auto through = std::exchange(table.through[index_of(rank)], {});
    return libswap::when_memory([&] { return libswap::all_of(through); });
  }
  libswap::Event copy_beside_others(const Copy& copy) noexcept EBB_REQUIRES(mutex_) {
    const libswap::MutexUnlock unlocked(mutex_);
    return libswap::when_memory(
        [&] { return libswap::copy(copy.from.as(DType::u8), copy.to.as(DType::u8), {}); });
  }

  const std::uint32_t world_;
  const std::chrono::milliseconds limit_;
  mutable libswap::Mutex mutex_;  // of all that the tables hold
  libswap::Condition changed_;
  std::optional<Error> over_ EBB_GUARDED_BY(mutex_);  // why no meeting can take place any more
};

class ThreadRank : public Communicator {
 public:
  enum class Kind : std::uint8_t { first, duplicate };
  ThreadRank(std::shared_ptr<Tables> tables, std::shared_ptr<Table> table, Rank rank, Kind kind)
      : tables_(std::move(tables)), table_(std::move(table)), rank_(rank), kind_(kind) {}
  // A rank that is destroyed early would leave the others waiting.
  ~ThreadRank() override {
    if (kind_ == Kind::first)
      tables_->abandon(rank_);
    else
      tables_->abandon(*table_, rank_);
  }
  ThreadRank(const ThreadRank&) = delete;
  ThreadRank& operator=(const ThreadRank&) = delete;

  Rank rank() const override { return rank_; }
  std::uint32_t world() const override { return tables_->world(); }

  std::chrono::milliseconds limit() const override { return tables_->limit(); }

  Result<std::int64_t> agree(std::int64_t mine) override {
    EBB_TRY_ASSIGN(const Decision all, meet({{.verb = Verb::agree, .value = mine}}));
    return all.smallest;
  }
  Result<> sum(std::span<std::int64_t> numbers) override {
    if (numbers.data() == nullptr) numbers = {};  // brings none
    Contribution contribution{.verb = Verb::sum, .numbers = {numbers.begin(), numbers.end()}};
    EBB_TRY_ASSIGN(const Decision all, meet({std::move(contribution)}));
    std::ranges::copy(all.totals, numbers.begin());
    return {};
  }
  // Of any: all ranks see the same memory, and devices of one kind each other's.
  bool takes(const libswap::Device& /*device*/) const override { return true; }
  Result<libswap::Event> begin_exchange(std::span<const SendBuffer> sends,
                                        std::span<const ReceiveBuffer> receives,
                                        std::span<const libswap::Event> after) override {
    libswap::all_of(after).wait();
    Contribution contribution{.verb = Verb::exchange,
                              .sends = messages_of(*this, sends),
                              .receives = messages_of(*this, receives)};
    return tables_->exchange(*table_, rank_, {std::move(contribution), sends, receives});
  }
  Result<std::unique_ptr<Communicator>> duplicate() override {
    EBB_TRY_ASSIGN(auto table, tables_->duplicate(*table_, rank_));
    return std::unique_ptr<Communicator>(
        std::make_unique<ThreadRank>(tables_, std::move(table), rank_, Kind::duplicate));
  }
  void abort() override { tables_->abandon(rank_); }

 private:
  Result<Decision> meet(Request request) {
    return tables_->meet(*table_, rank_, std::move(request));
  }

  std::shared_ptr<Tables> tables_;
  std::shared_ptr<Table> table_;
  Rank rank_;
  Kind kind_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_thread_ranks(std::uint32_t world,
                                                             std::chrono::milliseconds limit) {
  const auto tables = std::make_shared<Tables>(world, limit);
  const auto table = std::make_shared<Table>(world);
  std::vector<std::unique_ptr<Communicator>> ranks;
  ranks.reserve(world);
  for (std::uint32_t rank = 0; rank < world; ++rank)
    ranks.push_back(
        at_home(std::make_unique<ThreadRank>(tables, table, Rank{rank}, ThreadRank::Kind::first)));
  return ranks;
}

}  // namespace ebb::libmuon
