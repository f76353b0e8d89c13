#include "ebb/libmuon/comm/message_ranks.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <optional>
#include <thread>
#include <utility>

#include "ebb/libmuon/comm/home_ranks.h"
#include "ebb/libmuon/comm/meeting.h"
#include "ebb/libmuon/comm/message_world.h"

namespace ebb::libmuon {
namespace {

using Clock = std::chrono::steady_clock;
using formats::append_le;

// Of what the ranks say to each other; ranks of another build may not be understood.
constexpr std::uint64_t kVersion = 1;

// What one rank says to another in a meeting: its length, then the words, in messages.
class Inbox {
 public:
  void put(const ByteVector& message) {
    ByteView rest = message;
    if (wanted_ == 0) {
      wanted_ = formats::load_le<std::uint64_t>(rest);
      rest = rest.subspan(sizeof(std::uint64_t));
    }
    formats::append_bytes(words_, rest);
    if (words_.size() < wanted_) return;
    whole_.push_back(std::exchange(words_, {}));
    wanted_ = 0;
  }
  bool empty() const { return whole_.empty(); }
  ByteVector take() {
    ByteVector first = std::move(whole_.front());
    whole_.pop_front();
    return first;
  }

 private:
  ByteVector words_;
  std::uint64_t wanted_ = 0;
  std::deque<ByteVector> whole_;
};

// Between looks at what has come: soon again, then after a part of the time waited so far.
class Pause {
 public:
  void wait() const {
    const auto waited = Clock::now() - begin_;
    if (waited < std::chrono::microseconds(50)) return std::this_thread::yield();
    std::this_thread::sleep_for(
        std::min<std::chrono::nanoseconds>(waited / 16, std::chrono::milliseconds(1)));
  }
  void begin_again() { begin_ = Clock::now(); }

 private:
  Clock::time_point begin_ = Clock::now();
};

// Why an exchange is not well, as one rank sees it: the ranks agree on the first.
struct Refusal {
  enum class Of : std::uint8_t { rank, pair };  // what one rank brings; what two do not both expect
  Of of = Of::rank;
  Error why;
};

ByteVector encode(const Contribution& contribution, Rank to) {
  ByteVector out;
  append_le(out, contribution.verb);
  append_le(out, contribution.value);
  append_le(out, static_cast<std::uint64_t>(contribution.numbers.size()));
  formats::append_bytes(out, std::as_bytes(std::span(contribution.numbers)));
  for (const auto* messages : {&contribution.sends, &contribution.receives}) {
    const auto ours = [&](const Message& message) { return message.peer == to; };
    append_le(out, static_cast<std::uint64_t>(std::ranges::count_if(*messages, ours)));
    for (const Message& message : *messages)
      if (ours(message)) append_le(out, message.bytes);
  }
  return out;
}

std::vector<std::uint64_t> numbers_of(formats::ByteReader& in) {
  const auto bytes = in.take(in.number<std::uint64_t>().value() * sizeof(std::uint64_t)).value();
  std::vector<std::uint64_t> numbers(bytes.size() / sizeof(std::uint64_t));
  std::ranges::copy(bytes, std::as_writable_bytes(std::span(numbers)).begin());
  return numbers;
}

// What it says of exchanges is what concerns this rank alone.
struct Said {
  Contribution contribution;
  std::vector<std::uint64_t> sends, receives;  // sizes
};

Said decode(ByteView words) {
  formats::ByteReader in(words);
  Said said;
  said.contribution.verb = in.number<Verb>().value();
  said.contribution.value = in.number<std::int64_t>().value();
  for (const std::uint64_t number : numbers_of(in))
    said.contribution.numbers.push_back(static_cast<std::int64_t>(number));
  said.sends = numbers_of(in);
  said.receives = numbers_of(in);
  return said;
}

std::vector<std::uint64_t> sizes_to(std::span<const Message> messages, Rank peer) {
  std::vector<std::uint64_t> sizes;
  for (const Message& message : messages)
    if (message.peer == peer) sizes.push_back(message.bytes);
  return sizes;
}

std::optional<Refusal> refusal_of(const Contribution& mine, Rank me, std::span<const Said> all) {
  const auto world = static_cast<std::uint32_t>(all.size());
  if (auto well = check_messages(mine, me, world); !well)
    return Refusal{Refusal::Of::rank, std::move(well).error()};
  for (std::uint32_t to = 0; to < world; ++to)
    if (auto well = check_pair(me, Rank{to}, sizes_to(mine.sends, Rank{to}), all[to].receives);
        !well)
      return Refusal{Refusal::Of::pair, std::move(well).error()};
  return std::nullopt;
}

ByteVector encode(const std::optional<Refusal>& refusal) {
  ByteVector out;
  if (!refusal) return out;
  append_le(out, refusal->of);
  append_le(out, refusal->why.code);
  formats::append_text(out, refusal->why.message);
  return out;
}

// The first of all ranks' in the order in which decide() looks: ranks, then pairs.
Result<> verdict_of(std::span<const ByteVector> all) {
  std::optional<Refusal> first;
  for (const ByteVector& words : all) {
    formats::ByteReader in(words);
    const auto of = in.number<Refusal::Of>();
    if (!of || (first && first->of <= *of)) continue;
    const Code code = in.number<Code>().value();
    first = Refusal{*of, {code, std::string(formats::text_of(in.take(in.left()).value()))}};
  }
  if (first) return std::move(first->why);
  return {};
}

class MessageRank : public Communicator {
 public:
  MessageRank(std::shared_ptr<MessageWorld> world, std::uint32_t channel)
      : world_(std::move(world)), channel_(channel), inbox_(MessageRank::world()) {}
  ~MessageRank() override {
    if (channel_ == 0)
      MessageRank::abort();
    else
      world_->close_channel(channel_, gave_up(rank()));
  }
  MessageRank(const MessageRank&) = delete;
  MessageRank& operator=(const MessageRank&) = delete;

  // The first meeting: whether these ranks can be a world at all.
  Result<> greet(const Result<>& able);

  Rank rank() const override { return world_->rank(); }
  std::uint32_t world() const override { return world_->size(); }
  std::chrono::milliseconds limit() const override { return world_->limit(); }

  Result<std::int64_t> agree(std::int64_t mine) override {
    EBB_TRY_ASSIGN(const auto all, tell({.verb = Verb::agree, .value = mine}));
    EBB_TRY_ASSIGN(const Decision decision, decide_on(all));
    return decision.smallest;
  }
  Result<> sum(std::span<std::int64_t> numbers) override {
    if (numbers.data() == nullptr) numbers = {};  // brings none
    EBB_TRY_ASSIGN(const auto all,
                   tell({.verb = Verb::sum, .numbers = {numbers.begin(), numbers.end()}}));
    EBB_TRY_ASSIGN(const Decision decision, decide_on(all));
    std::ranges::copy(decision.totals, numbers.begin());
    return {};
  }
  bool takes(const libswap::Device& /*device*/) const override { return false; }
  Result<libswap::Event> begin_exchange(std::span<const SendBuffer> sends,
                                        std::span<const ReceiveBuffer> receives,
                                        std::span<const libswap::Event> after) override;
  Result<std::unique_ptr<Communicator>> duplicate() override {
    EBB_TRY_ASSIGN(const std::uint32_t channel, world_->open_channel());
    return std::unique_ptr<Communicator>(std::make_unique<MessageRank>(world_, channel));
  }
  void abort() override { world_->end(gave_up(rank())); }

 private:
  // Of whom the limit is asked: to come at all, or, once all are here, to go on moving bytes.
  enum class Counted : std::uint8_t { from_the_call, from_the_last_bytes };
  enum class Progress : std::uint8_t { none, some, done };
  struct Wait {
    Counted counted;
    std::uint32_t tag;
    std::function<Result<Progress>()> go_on;
    std::function<bool(Rank)> is_wanted;  // whether this rank waits for something of that one
  };
  using Lanes = Transport::Lanes;

  std::uint32_t talk_tag() const { return 2 * channel_ + 1; }
  std::uint32_t data_tag() const { return 2 * channel_ + 2; }

  Result<std::vector<Said>> tell(const Contribution& mine);
  static Result<Decision> decide_on(const std::vector<Said>& all);
  Result<std::vector<ByteVector>> meet(Verb verb, const std::function<ByteVector(Rank)>& words_for);
  Result<> say(Rank to, const ByteVector& words);
  // This rank's part in the meeting is done.
  template <typename T>
  T parted(T answer) {
    world_->enter(channel_, meeting_ + 1);
    return answer;
  }
  Result<Progress> hear();
  Result<> move(Lanes out, Lanes in);
  Result<> wait(const Wait& wait);
  std::optional<Rank> gone(const Wait& wait);
  Error late(const Wait& wait, const std::vector<Rank>& unsent);

  const std::shared_ptr<MessageWorld> world_;
  const std::uint32_t channel_;
  std::vector<Inbox> inbox_;  // by peer
  std::uint64_t meeting_ = 0;
  Verb verb_ = Verb::agree;  // of this meeting
};

Result<> MessageRank::greet(const Result<>& able) {
  EBB_TRY_ASSIGN(const auto all, meet(Verb::agree, [&](Rank) {
                   ByteVector out;
                   append_le(out, kVersion);
                   append_le(out, static_cast<std::int64_t>(limit().count()));
                   append_le(out, able ? Code::peer : able.error().code);
                   if (!able) formats::append_text(out, able.error().message);
                   return out;
                 }));
  world_->enter(channel_, meeting_ + 1);
  std::optional<std::int64_t> limit_of_first;
  for (std::uint32_t peer = 0; peer < all.size(); ++peer) {
    formats::ByteReader in(all[peer]);
    if (const auto version = in.number<std::uint64_t>(); version != kVersion)
      return Error{Code::usage,
                   compose("rank {} speaks version {} of the messages between ranks, rank {} {}",
                           peer, version.value_or(0), index_of(rank()), kVersion),
                   "start all ranks from one build"};
    const auto milliseconds = in.number<std::int64_t>().value();
    const Code code = in.number<Code>().value();
    if (in.left() > 0)
      return Error{code, compose("rank {}: {}", peer, formats::text_of(*in.take(in.left())))};
    if (!limit_of_first) limit_of_first = milliseconds;
    if (*limit_of_first != milliseconds)
      return Error{Code::usage,
                   compose("rank 0 waits {} ms for its peers, rank {} {} ms", *limit_of_first, peer,
                           milliseconds),
                   "give all ranks the same limit"};
  }
  return {};
}

Result<libswap::Event> MessageRank::begin_exchange(std::span<const SendBuffer> sends,
                                                   std::span<const ReceiveBuffer> receives,
                                                   std::span<const libswap::Event> after) {
  libswap::all_of(after).wait();
  Contribution mine{.verb = Verb::exchange};
  for (const SendBuffer& send : sends)
    mine.sends.push_back({send.peer, send.data.size(), memory_of(*this, send.data)});
  for (const ReceiveBuffer& receive : receives)
    mine.receives.push_back({receive.peer, receive.data.size(), memory_of(*this, receive.data)});
  EBB_TRY_ASSIGN(const std::vector<Said> all, tell(mine));
  EBB_TRY(decide_on(all));
  const auto refusal = refusal_of(mine, rank(), all);
  EBB_TRY_ASSIGN(const auto refusals, meet(Verb::exchange, [&](Rank) { return encode(refusal); }));
  if (auto well = verdict_of(refusals); !well) return parted(std::move(well).error());
  Lanes out(world()), in(world());
  for (const SendBuffer& send : sends) out[index_of(send.peer)].add(send.data.bytes());
  for (const ReceiveBuffer& receive : receives)
    in[index_of(receive.peer)].add(receive.data.bytes());
  EBB_TRY(move(std::move(out), std::move(in)));
  return parted(libswap::Event());
}

// Verbs that differ are an error on every rank: all see all of them.
Result<Decision> MessageRank::decide_on(const std::vector<Said>& all) {
  std::vector<Contribution> all_ranks;
  for (const Said& said : all) all_ranks.push_back(said.contribution);
  return decide(all_ranks);
}

Result<std::vector<Said>> MessageRank::tell(const Contribution& mine) {
  EBB_TRY_ASSIGN(const auto words, meet(mine.verb, [&](Rank peer) { return encode(mine, peer); }));
  std::vector<Said> all;
  for (const ByteVector& one : words) all.push_back(decode(one));
  return parted(std::move(all));
}

// What every rank has for this one.
Result<std::vector<ByteVector>> MessageRank::meet(
    Verb verb, const std::function<ByteVector(Rank)>& words_for) {
  verb_ = verb;
  ++meeting_;
  EBB_TRY(world_->still_on(channel_, meeting_));
  world_->enter(channel_, meeting_);
  for (std::uint32_t peer = 0; peer < world(); ++peer)
    if (Rank{peer} != rank()) EBB_TRY(say(Rank{peer}, words_for(Rank{peer})));
  EBB_TRY(wait(
      {.counted = Counted::from_the_call,
       .tag = talk_tag(),
       .go_on = [&] { return hear(); },
       .is_wanted = [&](Rank peer) { return peer != rank() && inbox_[index_of(peer)].empty(); }}));
  std::vector<ByteVector> all(world());
  for (std::uint32_t peer = 0; peer < world(); ++peer)
    all[peer] = Rank{peer} == rank() ? words_for(rank()) : inbox_[peer].take();
  return all;
}

Result<> MessageRank::say(Rank to, const ByteVector& words) {
  ByteVector whole;
  append_le(whole, static_cast<std::uint64_t>(words.size()));
  formats::append_bytes(whole, words);
  for (ByteView rest = whole; !rest.empty();) {
    const ByteView next = rest.first(std::min(rest.size(), kMostMessage));
    EBB_TRY(world_->send(to, talk_tag(), {next.begin(), next.end()}));
    rest = rest.subspan(next.size());
  }
  return {};
}

Result<MessageRank::Progress> MessageRank::hear() {
  for (;;) {
    EBB_TRY_ASSIGN(auto arrived, world_->receive(talk_tag()));
    if (!arrived) break;
    inbox_[index_of(arrived->from)].put(arrived->message);
  }
  for (std::uint32_t peer = 0; peer < world(); ++peer)
    if (Rank{peer} != rank() && inbox_[peer].empty()) return Progress::none;
  return Progress::done;
}

// The bytes of a round that all found well.
Result<> MessageRank::move(Lanes out, Lanes in) {
  const std::size_t me = index_of(rank());
  while (in[me].left() > 0) {
    const auto from = out[me].next(in[me].left());
    in[me].put(from);
    out[me].used(from.size());
  }
  const auto is_wanted = [&](Rank peer) {
    return in[index_of(peer)].left() > 0 || out[index_of(peer)].left() > 0;
  };
  const auto go_on = [&]() -> Result<Progress> {
    EBB_TRY_ASSIGN(const bool moved, world_->move(data_tag(), out, in));
    const auto through = [](const ByteLane& lane) { return lane.left() == 0; };
    if (std::ranges::all_of(out, through) && std::ranges::all_of(in, through))
      return Progress::done;
    return moved ? Progress::some : Progress::none;
  };
  return wait({Counted::from_the_last_bytes, data_tag(), go_on, is_wanted});
}

// Until nothing is wanted and all that was sent has gone.
Result<> MessageRank::wait(const Wait& wait) {
  Pause pause;
  auto heard = Clock::now();
  std::optional<Rank> gone;  // when what came was looked at last
  for (;;) {
    EBB_TRY(world_->still_on(channel_, meeting_));
    EBB_TRY_ASSIGN(const Progress progress, wait.go_on());
    EBB_TRY_ASSIGN(const std::vector<Rank> unsent, world_->unsent(wait.tag));
    // Whoever came late finds all there, and behind that, perhaps, that they have given up.
    if (progress == Progress::done && unsent.empty()) return world_->still_on(channel_, meeting_);
    if (gone && progress == Progress::none && wait.is_wanted(*gone))
      return world_->end(ended(*gone, *world_->gone(*gone)));
    gone = progress == Progress::none ? this->gone(wait) : std::nullopt;
    if (gone) continue;  // what it had sent is taken first, its farewell too
    if (progress == Progress::some) pause.begin_again();
    if (progress == Progress::some && wait.counted == Counted::from_the_last_bytes)
      heard = Clock::now();
    if (limit().count() != 0 && Clock::now() - heard >= limit()) return late(wait, unsent);
    pause.wait();
  }
}

// A rank that is waited for, and of which nothing follows.
std::optional<Rank> MessageRank::gone(const Wait& wait) {
  for (std::uint32_t peer = 0; peer < world(); ++peer)
    if (Rank{peer} != rank() && wait.is_wanted(Rank{peer}) && world_->gone(Rank{peer}))
      return Rank{peer};
  return std::nullopt;
}

Error MessageRank::late(const Wait& wait, const std::vector<Rank>& unsent) {
  std::vector<Rank> missing;
  for (std::uint32_t peer = 0; peer < world(); ++peer)
    if (wait.is_wanted(Rank{peer}) || std::ranges::find(unsent, Rank{peer}) != unsent.end())
      missing.push_back(Rank{peer});
  return world_->end(silent(missing, verb_, limit()));
}

}  // namespace

Result<std::unique_ptr<Communicator>> make_message_ranks(std::unique_ptr<Transport> transport,
                                                         std::chrono::milliseconds limit,
                                                         const Result<>& able) {
  if (transport == nullptr)
    return Error{Code::usage, "ranks over messages want a transport, and there is none"};
  const auto world = std::make_shared<MessageWorld>(std::move(transport), limit);
  EBB_TRY_ASSIGN(const std::uint32_t channel, world->open_channel());
  auto ranks = std::make_unique<MessageRank>(world, channel);
  EBB_TRY(ranks->greet(able));
  return at_home(std::move(ranks));
}

}  // namespace ebb::libmuon
