// What only ranks over messages can do: greet each other, and travel in pieces.
#include <gtest/gtest.h>

#include <array>
#include <atomic>
#include <mutex>
#include <numeric>
#include <string>
#include <thread>

#include "ebb/libmuon/comm/byte_lane.h"
#include "ebb/libmuon/comm/message_ranks.h"
#include "tests/libmuon/comm/rounds.h"
#include "tests/libmuon/support/mailboxes.h"

namespace ebb::libmuon {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPatience(10000);

// `body` on a thread a rank.
void on_mailboxes(std::uint32_t world, const test::Inspect& inspect,
                  const std::function<void(std::unique_ptr<Transport>)>& body) {
  auto mailboxes = test::make_mailboxes(world, inspect);
  std::vector<std::thread> threads;
  for (auto& mailbox : mailboxes) threads.emplace_back([&] { body(std::move(mailbox)); });
  for (std::thread& thread : threads) thread.join();
}

Result<> any_message(Rank, Rank, std::uint32_t, ByteView) { return {}; }

TEST(MessageRanks, HowEverMuchTravelsNoMessageIsLongerThanTheirLimit) {
  constexpr std::size_t kNumbers = 400'000;  // 3.2 MB
  std::mutex mutex;
  std::size_t longest = 0, messages = 0;
  const auto measure = [&](Rank, Rank, std::uint32_t, ByteView message) {
    const std::lock_guard lock(mutex);
    longest = std::max(longest, message.size());
    ++messages;
    return Result<>();
  };
  on_mailboxes(3, measure, [](std::unique_ptr<Transport> transport) {
    const auto ranks = make_message_ranks(std::move(transport), kPatience);
    ASSERT_TRUE(ranks);
    std::vector<std::int64_t> numbers(kNumbers);
    std::iota(numbers.begin(), numbers.end(), index_of((*ranks)->rank()));
    ASSERT_TRUE((*ranks)->sum(numbers));
    for (std::size_t i = 0; i < kNumbers; ++i)
      ASSERT_EQ(numbers[i], static_cast<std::int64_t>(3 * i + 3));
    Round round(**ranks, (1u << 20) - 7);
    ASSERT_TRUE((*ranks)->exchange(round.sends, round.receives));
    EXPECT_TRUE(round.arrived(**ranks));
  });
  EXPECT_EQ(longest, kMostMessage);
  EXPECT_GT(messages, 3u * 2 * 4 + 18);
}

TEST(MessageRanks, AnEmptyBufferIsOneToo) {
  on_mailboxes(2, any_message, [](std::unique_ptr<Transport> transport) {
    const auto ranks = make_message_ranks(std::move(transport), kPatience);
    ASSERT_TRUE(ranks);
    const Rank peer{1 - index_of((*ranks)->rank())};
    std::vector<std::byte> out = pattern(1, 2, 3), in(3);
    const std::vector<SendBuffer> sends = {{peer, libswap::Buffer()},
                                           {peer, libswap::buffer_of(std::span(out))},
                                           {peer, libswap::Buffer()}};
    const std::vector<ReceiveBuffer> receives = {{peer, libswap::Buffer()},
                                                 {peer, libswap::buffer_of(std::span(in))},
                                                 {peer, libswap::Buffer()}};
    ASSERT_TRUE((*ranks)->exchange(sends, receives));
    EXPECT_EQ(in, out);
  });
}

// All three ranks have something to complain of; what ranks bring is looked at before pairs.
TEST(MessageRanks, TheFirstRefusalIsThatOfAll) {
  on_mailboxes(3, any_message, [](std::unique_ptr<Transport> transport) {
    const auto ranks = make_message_ranks(std::move(transport), kPatience);
    ASSERT_TRUE(ranks);
    const std::uint32_t me = index_of((*ranks)->rank());
    std::vector<std::byte> bytes(8);
    const Rank nobody{7}, next{(me + 1) % 3};
    const std::vector<SendBuffer> sends = {
        {me == 0 ? next : nobody, libswap::buffer_of(std::span(bytes))}};
    const auto refused = (*ranks)->exchange(sends, {});
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().message, "exchange: rank 1 sends to rank 7 in a world of 3");
    EXPECT_TRUE((*ranks)->agree(0));
  });
}

// Expects the same error of all ranks.
void expect_refused(
    const std::function<Result<std::unique_ptr<Communicator>>(std::unique_ptr<Transport>)>& greet,
    Code code, const std::string& message) {
  on_mailboxes(3, any_message, [&](std::unique_ptr<Transport> transport) {
    const auto refused = greet(std::move(transport));
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, code);
    EXPECT_EQ(refused.error().message, message);
  });
}

TEST(MessageRanks, LimitsThatDifferAreNamedOnEveryRank) {
  expect_refused(
      [](std::unique_ptr<Transport> transport) {
        const bool odd = transport->rank() == Rank{2};
        return make_message_ranks(std::move(transport), odd ? kPatience * 2 : kPatience);
      },
      Code::usage, "rank 0 waits 10000 ms for its peers, rank 2 20000 ms");
}

TEST(MessageRanks, ARankThatCannotTakePartIsNamedOnEveryRank) {
  expect_refused(
      [](std::unique_ptr<Transport> transport) {
        const bool odd = transport->rank() == Rank{1};
        return make_message_ranks(
            std::move(transport), kPatience,
            odd ? Result<>(Error{Code::unsupported, "one thread only"}) : Result<>());
      },
      Code::unsupported, "rank 1: one thread only");
}

// A rank of another build, whose greeting says so.
TEST(MessageRanks, ARankThatSpeaksAnotherVersionIsNamed) {
  on_mailboxes(2, any_message, [](std::unique_ptr<Transport> transport) {
    if (transport->rank() == Rank{1}) {
      ByteVector greeting;
      formats::append_le(greeting, std::uint64_t{3 * sizeof(std::uint64_t)});
      for (const std::uint64_t number : {std::uint64_t{99}, std::uint64_t{0}, std::uint64_t{0}})
        formats::append_le(greeting, number);
      ASSERT_TRUE(transport->send(Rank{0}, 1, greeting));
      return;
    }
    const auto refused = make_message_ranks(std::move(transport), kPatience);
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Code::usage);
    EXPECT_EQ(refused.error().message,
              "rank 1 speaks version 99 of the messages between ranks, rank 0 1");
  });
}

TEST(MessageRanks, ARankThatDoesNotEvenGreetIsNamedWithinTheLimit) {
  on_mailboxes(3, any_message, [](std::unique_ptr<Transport> transport) {
    if (transport->rank() == Rank{1}) return;
    const auto alone = make_message_ranks(std::move(transport), milliseconds(200));
    ASSERT_FALSE(alone);
    EXPECT_EQ(alone.error().code, Code::peer);
    EXPECT_EQ(alone.error().message,
              "rank 1 kept the others waiting in agree for 200 ms, which is the limit");
  });
}

// Rank 0 has nothing to do with the bytes that are still on their way when it leaves.
TEST(MessageRanks, WhoHasDoneItsPartMayLeaveWhileOthersGoOnInADuplicate) {
  constexpr std::uint32_t kDataOfTheDuplicate = 4;
  const auto slow = [](Rank, Rank, std::uint32_t tag, ByteView) {
    if (tag == kDataOfTheDuplicate) std::this_thread::sleep_for(milliseconds(200));
    return Result<>();
  };
  on_mailboxes(3, slow, [](std::unique_ptr<Transport> transport) {
    const auto ranks = make_message_ranks(std::move(transport), kPatience);
    ASSERT_TRUE(ranks);
    const auto other = (*ranks)->duplicate();
    ASSERT_TRUE(other);
    const std::uint32_t me = index_of((*ranks)->rank());
    std::vector<std::byte> bytes(8);
    std::vector<SendBuffer> sends;
    std::vector<ReceiveBuffer> receives;
    if (me == 1) sends.push_back({Rank{2}, libswap::buffer_of(std::span(bytes))});
    if (me == 2) receives.push_back({Rank{1}, libswap::buffer_of(std::span(bytes))});
    const auto done = (*other)->exchange(sends, receives);
    EXPECT_TRUE(done) << me << ": " << done.error().message;
  });
}

// Another transport, for those that differ from it in a call.
class Through : public Transport {
 public:
  explicit Through(std::unique_ptr<Transport> below) : below_(std::move(below)) {}
  Rank rank() const override { return below_->rank(); }
  std::uint32_t world() const override { return below_->world(); }
  std::uint32_t tags() const override { return below_->tags(); }
  Result<> send(Rank to, std::uint32_t tag, ByteVector message) override {
    return below_->send(to, tag, std::move(message));
  }
  Result<std::vector<Rank>> unsent(std::uint32_t tag) override { return below_->unsent(tag); }

 protected:
  const std::unique_ptr<Transport> below_;
};

// Of messages with tag 0, where notices are, some come otherwise.
class OtherNotices : public Through {
 public:
  using Through::Through;
  Result<std::optional<Arrived>> receive(std::uint32_t tag) override {
    return tag == 0 ? notice() : below_->receive(tag);
  }

 protected:
  virtual Result<std::optional<Arrived>> notice() = 0;
};

// They are seen at the third look, as some MPIs do it.
class ThirdLook : public OtherNotices {
 public:
  using OtherNotices::OtherNotices;

 private:
  Result<std::optional<Arrived>> notice() override {
    if (held_ && ++looks_ == 3) return std::exchange(held_, std::nullopt);
    if (!held_) {
      looks_ = 1;
      EBB_TRY_ASSIGN(held_, below_->receive(0));
    }
    return std::optional<Arrived>();
  }

  std::optional<Arrived> held_;
  int looks_ = 0;
};

// Rank 0 does not hear those of rank 1, which come by a way of their own, later than all others'.
class Deaf : public OtherNotices {
 public:
  using OtherNotices::OtherNotices;

 private:
  Result<std::optional<Arrived>> notice() override {
    EBB_TRY_ASSIGN(auto heard, below_->receive(0));
    if (heard && rank() == Rank{0} && heard->from == Rank{1}) heard.reset();
    return heard;
  }
};

TEST(MessageRanks, WhoLeavesPassesOnWhyTheWorldIsOver) {
  on_mailboxes(3, any_message, [](std::unique_ptr<Transport> transport) {
    const auto ranks =
        make_message_ranks(std::make_unique<Deaf>(std::move(transport)), milliseconds(5000));
    ASSERT_TRUE(ranks);
    if ((*ranks)->rank() == Rank{1}) (*ranks)->abort();
    const auto answer = (*ranks)->agree(0);
    ASSERT_FALSE(answer);
    EXPECT_EQ(answer.error().message, "rank 1 gave up");
  });
}

// What comes is found only after the call that says that nothing follows.
class Ended : public Through {
 public:
  using Through::Through;
  Result<std::optional<Arrived>> receive(std::uint32_t tag) override {
    if (tag == 0) return below_->receive(0);
    if (std::exchange(said_, false)) return std::exchange(last_, std::nullopt);
    if (!last_) {
      EBB_TRY_ASSIGN(last_, below_->receive(tag));
    }
    return std::optional<Arrived>();
  }
  std::optional<std::string> gone(Rank) override {
    said_ = last_.has_value();
    return said_ ? std::optional<std::string>("its process ended") : std::nullopt;
  }

 private:
  std::optional<Arrived> last_;
  bool said_ = false;
};

TEST(MessageRanks, WhatARankHadSentBeforeItEndedIsTaken) {
  on_mailboxes(2, any_message, [](std::unique_ptr<Transport> transport) {
    const auto ranks = make_message_ranks(std::make_unique<Ended>(std::move(transport)), kPatience);
    ASSERT_TRUE(ranks) << ranks.error().message;
    const auto answer = (*ranks)->agree(0);
    EXPECT_TRUE(answer) << answer.error().message;
  });
}

// The others' words lie there when it comes, and behind them that they have given up.
TEST(MessageRanks, WhoComesLateIsAnsweredAsTheOthersWereHoweverLateItSeesIt) {
  on_mailboxes(3, any_message, [](std::unique_ptr<Transport> transport) {
    const auto ranks =
        make_message_ranks(std::make_unique<ThirdLook>(std::move(transport)), milliseconds(300));
    ASSERT_TRUE(ranks);
    if ((*ranks)->rank() == Rank{1}) std::this_thread::sleep_for(milliseconds(700));
    for (int again = 0; again < 2; ++again) {
      const auto answer = (*ranks)->agree(0);
      ASSERT_FALSE(answer);
      EXPECT_EQ(answer.error().message,
                "rank 1 kept the others waiting in agree for 300 ms, which is the limit");
    }
    // Until the late one has heard it: who leaves tells nothing new.
    std::this_thread::sleep_for(milliseconds(600));
  });
}

// Rank 1's wire breaks: it says why, the others hear that it is gone.
TEST(MessageRanks, ATransportThatFailsEndsTheWorldOnAllRanks) {
  std::atomic<bool> broken = false;
  const auto breaks = [&](Rank from, Rank, std::uint32_t tag, ByteView) -> Result<> {
    if (broken && from == Rank{1} && tag != 0) return Error{Code::peer, "the wire broke"};
    return {};
  };
  on_mailboxes(3, breaks, [&](std::unique_ptr<Transport> transport) {
    const auto ranks = make_message_ranks(std::move(transport), kPatience);
    ASSERT_TRUE(ranks);
    ASSERT_TRUE((*ranks)->agree(0));
    if ((*ranks)->rank() == Rank{1}) broken = true;
    for (int again = 0; again < 2; ++again) {
      const auto answer = (*ranks)->agree(0);
      ASSERT_FALSE(answer);
      EXPECT_EQ(answer.error().code, Code::peer);
      EXPECT_EQ(answer.error().message, "the wire broke");
    }
  });
}

TEST(ByteLane, IsOneRunOfBytesOverSeveralPlaces) {
  std::array<std::byte, 2> a{std::byte{1}, std::byte{2}};
  std::array<std::byte, 3> b{std::byte{3}, std::byte{4}, std::byte{5}};
  ByteLane out, in;
  for (ByteLane* lane : {&out, &in}) {
    lane->add({});
    lane->add(a);
    lane->add({});
    lane->add(b);
  }
  EXPECT_EQ(out.left(), 5u);
  EXPECT_EQ(out.take(3), (ByteVector{std::byte{1}, std::byte{2}, std::byte{3}}));
  EXPECT_EQ(out.take(9), (ByteVector{std::byte{4}, std::byte{5}}));
  EXPECT_EQ(out.left(), 0u);
  EXPECT_TRUE(out.take(1).empty());
  in.put(ByteVector{std::byte{9}, std::byte{8}, std::byte{7}});
  in.put(ByteVector{std::byte{6}});
  EXPECT_EQ(in.left(), 1u);
  in.put(ByteVector{std::byte{5}});
  EXPECT_EQ(a, (std::array<std::byte, 2>{std::byte{9}, std::byte{8}}));
  EXPECT_EQ(b, (std::array<std::byte, 3>{std::byte{7}, std::byte{6}, std::byte{5}}));
}

}  // namespace
}  // namespace ebb::libmuon
