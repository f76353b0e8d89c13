#include "ebb/libmuon/comm/remote_reads.h"

#include <algorithm>
#include <chrono>
#include <string>

#include "ebb/libmuon/comm/together.h"

namespace ebb::libmuon {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

constexpr std::uint64_t kMostRequest = 16 * formats::MiB;
// A rank that wants nothing still meets the others so often, because they may want something.
constexpr milliseconds kPause(20);

// What comes back: how it went, then the bytes, or as much of the error's text as fits.
enum class Went : std::uint8_t { well, badly };
constexpr std::size_t kWent = sizeof(Went);

}  // namespace

// One meeting: what all want, and what of it fits into this round.
class RemoteReads::Round {
 public:
  static ByteVector say(Rank me, const Wants& mine) {
    ByteVector out;
    formats::append_le(out, static_cast<std::uint8_t>(mine.finished));
    for (std::uint32_t i = 0; i < mine.requests.size(); ++i) {
      const Request& one = *mine.requests[i];
      formats::append_le(
          out, Known{index_of(me), index_of(one.holder), one.file, i, one.offset, one.into.size()});
    }
    return out;
  }
  explicit Round(const std::vector<ByteVector>& said) : sent_(said.size()), received_(said.size()) {
    for (const ByteVector& bytes : said) {
      formats::ByteReader in(bytes);
      all_finished_ = in.number<std::uint8_t>() == 1 && all_finished_;
      while (const auto known = in.number<Known>()) take(*known);
    }
  }

  bool all_finished() const { return all_finished_; }
  void read_for_others(Rank me, const Read& read);
  Result<> exchange(Communicator& ranks);
  // By the number of the request; what did not fit is asked for again.
  std::vector<std::pair<std::uint32_t, Result<>>> answers(const Wants& mine) const;

 private:
  // All ranks see the same requests in the same order, so all take the same ones.
  void take(const Known& known) {
    const std::uint64_t bytes = known.bytes + kWent;
    if (sent_[known.holder] + bytes > kMostRoundBytes) return;
    if (received_[known.wants] + bytes > kMostRoundBytes) return;
    sent_[known.holder] += bytes;
    received_[known.wants] += bytes;
    taken_.push_back(known);
  }

  bool all_finished_ = true;
  std::vector<std::uint64_t> sent_, received_;
  std::vector<Known> taken_;
  std::vector<ByteVector> out_, in_;  // of those that this rank holds, and wants
};

void RemoteReads::Round::read_for_others(Rank me, const Read& read) {
  for (const Known& known : taken_) {
    if (Rank{known.holder} != me) continue;
    ByteVector& out = out_.emplace_back(kWent + known.bytes);
    const auto room = std::span(out).subspan(kWent);
    const Result<> done = read(known.file, known.offset, room);
    out.front() = static_cast<std::byte>(done ? Went::well : Went::badly);
    if (done) continue;
    std::ranges::fill(room, std::byte{0});
    const ByteView text = formats::view_of(done.error().message);
    std::ranges::copy(text.first(std::min(text.size(), room.size())), room.begin());
  }
}

Result<> RemoteReads::Round::exchange(Communicator& ranks) {
  std::vector<SendBuffer> sends;
  std::vector<ReceiveBuffer> receives;
  for (const Known& known : taken_) {
    if (Rank{known.holder} == ranks.rank())
      sends.push_back({Rank{known.wants}, libswap::buffer_of(std::span(out_[sends.size()]))});
    if (Rank{known.wants} == ranks.rank()) in_.emplace_back(kWent + known.bytes);
  }
  for (const Known& known : taken_)
    if (Rank{known.wants} == ranks.rank())
      receives.push_back({Rank{known.holder}, libswap::buffer_of(std::span(in_[receives.size()]))});
  return ranks.exchange(sends, receives);
}

std::vector<std::pair<std::uint32_t, Result<>>> RemoteReads::Round::answers(
    const Wants& mine) const {
  std::vector<std::pair<std::uint32_t, Result<>>> all;
  for (const Known& known : taken_) {
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

Result<> RemoteReads::read(Rank holder, std::uint32_t file, std::uint64_t offset,
                           std::span<std::byte> into) {
  while (!into.empty()) {
    const std::size_t size = std::min<std::size_t>(into.size(), kMostRequest);
    Request request{holder, file, offset, into.first(size)};
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

RemoteReads::Wants RemoteReads::wait_for_wants(Rank me, milliseconds limit) {
  const libswap::MutexLock lock(mutex_);
  const auto end = Clock::now() + limit;
  while (waiting_.empty() && !finished_ && Clock::now() < end)
    changed_.wait_for(mutex_, end - Clock::now());
  return {me, finished_, waiting_};
}

void RemoteReads::answer_to(Request& request, Result<> answer) {
  const libswap::MutexLock lock(mutex_);
  std::erase(waiting_, &request);
  request.answer = std::move(answer);
  changed_.notify_all();
}

void RemoteReads::finish() {
  const libswap::MutexLock lock(mutex_);
  finished_ = true;
  changed_.notify_all();
}

void RemoteReads::close(const Error& why) {
  const libswap::MutexLock lock(mutex_);
  closed_ = why;
  for (Request* request : waiting_) request->answer = why;
  waiting_.clear();
  changed_.notify_all();
}

Result<> RemoteReads::run(Communicator& ranks, std::string_view doing,
                          const std::function<Result<>()>& work) {
  {
    const libswap::MutexLock lock(mutex_);
    finished_ = false;
  }
  const auto meet = [&]() -> Result<> {
    Result<> served = serve(ranks);
    if (!served) close(served.error());
    return served;
  };
  return together(ranks, doing, work, {.meet = meet, .ended = [this] { finish(); }});
}

// Meets the others until all have finished.
Result<> RemoteReads::serve(Communicator& ranks) {
  const auto slice = ranks.limit() / 4;
  const milliseconds pause = slice.count() == 0 ? kPause : std::min(kPause, slice);
  for (;;) {
    const Wants mine = wait_for_wants(ranks.rank(), pause);
    EBB_TRY_ASSIGN(const auto said, libswap::gather(ranks, Round::say(ranks.rank(), mine)));
    Round round(said);
    if (round.all_finished()) return {};
    round.read_for_others(ranks.rank(), read_);
    EBB_TRY(round.exchange(ranks));
    for (auto& [number, answer] : round.answers(mine))
      answer_to(*mine.requests[number], std::move(answer));
  }
}

}  // namespace ebb::libmuon
