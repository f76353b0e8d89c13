// Communicator::together(), together_reading(): what each rank does on its own for a long time,
// while its caller meets the others, and reads for them what they do not reach: no rank knows when
// another one will want what.
#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "ebb/libmuon/comm/communicator.h"
#include "ebb/libswap/sys/mutex.h"
#include "ebb/libswap/sys/thread.h"
#include "ebb/libswap/sys/when_memory.h"

namespace ebb::libmuon {
namespace {

using Clock = std::chrono::steady_clock;
using libswap::FilesApart;
using std::chrono::milliseconds;

// `meet`, on the calling thread, returns when all ranks' work has ended or they cannot meet any
// more; `ended` tells it so of this rank's.
Result<> work_beside(Communicator& ranks, std::string_view doing,
                     const std::function<Result<>()>& work, const std::function<Result<>()>& meet,
                     const std::function<void()>& ended) {
  if (ranks.world() == 1) return libswap::agree_all(ranks, work(), doing);
  Result<> mine;
  auto thread = libswap::start_thread([&] {
    mine = libswap::or_no_memory(work);
    ended();
  });
  if (!thread) ended();
  const Result<> met = meet();
  if (thread)
    thread->join();
  else
    mine = std::move(thread).error();
  EBB_TRY(met);
  return libswap::agree_all(ranks, mine, doing);
}

class Finished {
 public:
  void set() {
    const libswap::MutexLock lock(mutex_);
    set_ = true;
    changed_.notify_all();
  }
  // Whether it is set, after waiting for that so long at most.
  bool within(std::chrono::nanoseconds limit) {
    const libswap::MutexLock lock(mutex_);
    const auto end = Clock::now() + limit;
    while (!set_ && Clock::now() < end) changed_.wait_for(mutex_, end - Clock::now());
    return set_;
  }

 private:
  libswap::Mutex mutex_;
  libswap::Condition changed_;
  bool set_ EBB_GUARDED_BY(mutex_) = false;
};

// Meets the others until all have finished.
Result<> meet_until(Communicator& ranks, Finished& finished) {
  for (;;) {
    const bool mine = finished.within(ranks.limit() / 4);
    EBB_TRY_ASSIGN(const std::int64_t all, ranks.agree(mine ? 1 : 0));
    if (all == 1) return {};
  }
}

// --- bytes of files that another rank reaches

constexpr std::uint64_t kMostRequest = 16 * formats::MiB;
// A rank that wants nothing still meets the others so often, because they may want something.
constexpr milliseconds kPause(20);

// What comes back: how it went, then the bytes, or as much of the error's text as fits.
enum class Went : std::uint8_t { well, badly };
constexpr std::size_t kWent = sizeof(Went);

struct ReadRequest {
  Rank holder{};
  std::uint32_t file = 0;
  std::uint64_t offset = 0;
  std::span<std::byte> into;
  std::optional<Result<>> answer = {};
};
// A request as all ranks know it; `number`: among those of the rank that wants it.
struct KnownRequest {
  std::uint32_t wants = 0, holder = 0, file = 0, number = 0;
  std::uint64_t offset = 0, bytes = 0;
};
struct Wants {
  Rank rank{};
  bool finished = false;
  std::vector<ReadRequest*> requests;
};

// One meeting: what all want, and what of it fits into this round.
class ReadingRound {
 public:
  static ByteVector say(const Wants& mine) {
    ByteVector out;
    formats::append_le(out, static_cast<std::uint8_t>(mine.finished));
    for (std::uint32_t i = 0; i < mine.requests.size(); ++i) {
      const ReadRequest& one = *mine.requests[i];
      formats::append_le(out, KnownRequest{index_of(mine.rank), index_of(one.holder), one.file, i,
                                           one.offset, one.into.size()});
    }
    return out;
  }
  explicit ReadingRound(const std::vector<ByteVector>& said)
      : sent_(said.size()), received_(said.size()) {
    for (const ByteVector& bytes : said) {
      formats::ByteReader in(bytes);
      all_finished_ = in.number<std::uint8_t>() == 1 && all_finished_;
      while (const auto known = in.number<KnownRequest>()) take(*known);
    }
  }

  bool all_finished() const { return all_finished_; }
  void read_for_others(Rank me, const FilesApart& files);
  Result<> exchange(Communicator& ranks);
  // By the number of the request; what did not fit is asked for again.
  std::vector<std::pair<std::uint32_t, Result<>>> answers(const Wants& mine) const;

 private:
  // All ranks see the same requests in the same order, so all take the same ones.
  void take(const KnownRequest& known) {
    const std::uint64_t bytes = known.bytes + kWent;
    if (sent_[known.holder] + bytes > kMostRoundBytes) return;
    if (received_[known.wants] + bytes > kMostRoundBytes) return;
    sent_[known.holder] += bytes;
    received_[known.wants] += bytes;
    taken_.push_back(known);
  }

  bool all_finished_ = true;
  std::vector<std::uint64_t> sent_, received_;
  std::vector<KnownRequest> taken_;
  std::vector<ByteVector> out_, in_;  // of those that this rank holds, and wants
};

void ReadingRound::read_for_others(Rank me, const FilesApart& files) {
  for (const KnownRequest& known : taken_) {
    if (Rank{known.holder} != me) continue;
    ByteVector& out = out_.emplace_back(kWent + known.bytes);
    const auto room = std::span(out).subspan(kWent);
    const Result<> done = files.read(known.file, known.offset, room);
    out.front() = static_cast<std::byte>(done ? Went::well : Went::badly);
    if (done) continue;
    std::ranges::fill(room, std::byte{0});
    const ByteView text = formats::view_of(done.error().message);
    std::ranges::copy(text.first(std::min(text.size(), room.size())), room.begin());
  }
}

Result<> ReadingRound::exchange(Communicator& ranks) {
  std::vector<SendBuffer> sends;
  std::vector<ReceiveBuffer> receives;
  for (const KnownRequest& known : taken_) {
    if (Rank{known.holder} == ranks.rank())
      sends.push_back({Rank{known.wants}, libswap::buffer_of(std::span(out_[sends.size()]))});
    if (Rank{known.wants} == ranks.rank()) in_.emplace_back(kWent + known.bytes);
  }
  for (const KnownRequest& known : taken_)
    if (Rank{known.wants} == ranks.rank())
      receives.push_back({Rank{known.holder}, libswap::buffer_of(std::span(in_[receives.size()]))});
  return ranks.exchange(sends, receives);
}

std::vector<std::pair<std::uint32_t, Result<>>> ReadingRound::answers(const Wants& mine) const {
  std::vector<std::pair<std::uint32_t, Result<>>> all;
  for (const KnownRequest& known : taken_) {
    if (Rank{known.wants} != mine.rank) continue;
    const ByteView in = in_[all.size()];
    const ByteView bytes = in.subspan(kWent);
    if (in.front() == static_cast<std::byte>(Went::well)) {
      std::ranges::copy(bytes, mine.requests[known.number]->into.begin());
      all.emplace_back(known.number, Result<>());
      continue;
    }
    const std::string_view text = formats::text_of(bytes);
    all.emplace_back(known.number,
                     Error{Code::peer, compose("rank {} could not read for this one: {}",
                                               known.holder, text.substr(0, text.find('\0')))});
  }
  return all;
}

class RemoteReads {
 public:
  // Blocks until `holder` has sent them. Any thread.
  Result<> read(Rank holder, std::uint32_t file, std::uint64_t offset, std::span<std::byte> into) {
    while (!into.empty()) {
      const std::size_t size = std::min<std::size_t>(into.size(), kMostRequest);
      ReadRequest request{holder, file, offset, into.first(size)};
      const libswap::MutexLock lock(mutex_);
      if (closed_) return *closed_;
      waiting_.push_back(&request);
      changed_.notify_all();
      while (!request.answer) changed_.wait(mutex_);
      EBB_TRY(*request.answer);
      offset += size;
      into = into.subspan(size);
    }
    return {};
  }
  // This rank wants no more.
  void finish() {
    const libswap::MutexLock lock(mutex_);
    finished_ = true;
    changed_.notify_all();
  }
  // Meets the others, and reads for them, until all have finished.
  Result<> serve(Communicator& ranks, const FilesApart& files) {
    Result<> served = meet(ranks, files);
    if (served) return served;
    const libswap::MutexLock lock(mutex_);
    closed_ = served.error();
    for (ReadRequest* request : waiting_) request->answer = served;
    waiting_.clear();
    changed_.notify_all();
    return served;
  }

 private:
  Result<> meet(Communicator& ranks, const FilesApart& files) {
    const auto slice = ranks.limit() / 4;
    const milliseconds pause = slice.count() == 0 ? kPause : std::min(kPause, slice);
    for (;;) {
      const Wants mine = wait_for_wants(ranks.rank(), pause);
      EBB_TRY_ASSIGN(const auto said, libswap::gather(ranks, ReadingRound::say(mine)));
      ReadingRound round(said);
      if (round.all_finished()) return {};
      round.read_for_others(ranks.rank(), files);
      EBB_TRY(round.exchange(ranks));
      for (auto& [number, answer] : round.answers(mine))
        answer_to(*mine.requests[number], std::move(answer));
    }
  }
  Wants wait_for_wants(Rank me, milliseconds limit) {
    const libswap::MutexLock lock(mutex_);
    const auto end = Clock::now() + limit;
    while (waiting_.empty() && !finished_ && Clock::now() < end)
      changed_.wait_for(mutex_, end - Clock::now());
    return {me, finished_, waiting_};
  }
  void answer_to(ReadRequest& request, Result<> answer) {
    const libswap::MutexLock lock(mutex_);
    std::erase(waiting_, &request);
    request.answer = std::move(answer);
    changed_.notify_all();
  }

  libswap::Mutex mutex_;
  libswap::Condition changed_;
  std::vector<ReadRequest*> waiting_ EBB_GUARDED_BY(mutex_);
  bool finished_ EBB_GUARDED_BY(mutex_) = false;
  std::optional<Error> closed_ EBB_GUARDED_BY(mutex_);  // why nobody is served any more
};

}  // namespace

Result<> Communicator::together(std::string_view doing, const std::function<Result<>()>& work) {
  if (limit().count() == 0) return Ranks::together(doing, work);
  Finished finished;
  return work_beside(
      *this, doing, work, [&] { return meet_until(*this, finished); }, [&] { finished.set(); });
}

Result<> Communicator::together_reading(
    std::string_view doing, const FilesApart& files,
    const std::function<Result<>(const libswap::ReadThere& there)>& work) {
  RemoteReads reads;
  const libswap::ReadThere there = [&](Rank holder, std::uint32_t file, std::uint64_t offset,
                                       std::span<std::byte> into) {
    return reads.read(holder, file, offset, into);
  };
  return work_beside(
      *this, doing, [&] { return work(there); }, [&] { return reads.serve(*this, files); },
      [&] { reads.finish(); });
}

}  // namespace ebb::libmuon
