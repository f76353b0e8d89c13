// Other processes read a store while it is trained (docs/formats/commit.md, "Readers").
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>

#include "tests/libswap/store/store_on_disk.h"
#include "tests/support/source_tree.h"

namespace ebb::libswap {
namespace {

using Settled = Store::Settled;

class Reading : public StoreOnDisk, public testing::WithParamInterface<std::uint32_t> {
 protected:
  Reading() : StoreOnDisk(GetParam()) {}

  std::unique_ptr<Checkpoint> read_newest() const {
    auto described = formats::describe_ebb(tree());
    if (!described) ADD_FAILURE() << described.error().message;
    return described ? std::move(*described) : nullptr;
  }
  // Both ranks write a step and cut; false: they may not.
  bool cut(std::uint64_t step) {
    std::atomic<bool> all = true;
    run_ranks(2, [&](std::uint32_t rank, Agreement&) {
      ASSERT_TRUE(write_tiles(*io_, *stores_[rank], step));
      if (!stores_[rank]->can_cut())
        all = false;
      else
        stores_[rank]->cut(step);
    });
    return all;
  }
  // `between` runs when a rank has answered and the ranks have not agreed yet.
  Settled agree(const std::function<void()>& between = [] {}) {
    std::array<Settled, 2> settled{};
    run_ranks(2, [&](std::uint32_t rank, Agreement& ranks) {
      Between hooked(ranks, rank == 0 ? between : [] {});
      const Result<> prepared = stores_[rank]->prepare(manifest_of(rank));
      ASSERT_TRUE(ranks.agree(0));  // all are prepared
      const auto answer = stores_[rank]->agree(hooked, prepared);
      ASSERT_TRUE(answer) << answer.error().message;
      settled[rank] = *answer;
    });
    EXPECT_EQ(settled[0], settled[1]);
    return settled[0];
  }

 private:
  class Between : public Agreement {
   public:
    Between(Agreement& ranks, std::function<void()> once) : ranks_(ranks), once_(std::move(once)) {}
    Result<std::int64_t> agree(std::int64_t mine) override {
      if (once_) {
        EBB_TRY(ranks_.agree(0));  // every rank has its answer
        std::exchange(once_, nullptr)();
        EBB_TRY(ranks_.agree(0));
      }
      return ranks_.agree(mine);
    }

   private:
    Agreement& ranks_;
    std::function<void()> once_;
  };
};
INSTANTIATE_TEST_SUITE_P(Slots, Reading, testing::Values(2u, 3u));

TEST_P(Reading, AGenerationThatIsReadStaysWholeHoweverFarTrainingGoes) {
  const auto reader = read_newest();
  for (std::uint64_t step = 2; step < 9; ++step) {
    const bool taken = cut(step);
    EXPECT_EQ(taken, slots_ == 3) << step;  // with two the snapshot is put off, the step is not
    if (taken) {
      EXPECT_EQ(agree(), Settled::committed);
    }
    ASSERT_EQ(differs(*reader, 1), "") << step;
  }
}

TEST_P(Reading, WhatIsPutOffIsTakenWhenTheReaderIsDone) {
  auto first = read_newest();
  if (slots_ == 3) {
    ASSERT_TRUE(cut(2));
    ASSERT_EQ(agree(), Settled::committed);
  }
  auto second = read_newest();
  EXPECT_FALSE(cut(3));  // both slots, or two of three, are read
  const auto refused = stores_[0]->can_cut();
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::busy);
  const std::string generation = slots_ == 3 ? "2" : "1";
  EXPECT_NE(refused.error().message.find("another process reads generation " + generation),
            std::string::npos)
      << refused.error().message;
  first.reset();
  second.reset();
  ASSERT_TRUE(cut(3));
  EXPECT_EQ(agree(), Settled::committed);
  EXPECT_EQ(differs(*read_newest(), 3), "");
}

TEST_P(Reading, AReaderThatComesBetweenCutAndCommitKeepsItsGeneration) {
  ASSERT_TRUE(cut(2));
  const auto reader = read_newest();
  EXPECT_EQ(agree(), slots_ == 3 ? Settled::committed : Settled::put_off);
  EXPECT_EQ(stores_[0]->committed_generation(), slots_ == 3 ? 2u : 1u);
  ASSERT_TRUE(write_tiles(*io_, *stores_[0], 3) && write_tiles(*io_, *stores_[1], 3));
  EXPECT_EQ(differs(*reader, 1), "");
}

TEST_P(Reading, AReaderThatComesDuringTheAgreementFindsTheNewGeneration) {
  ASSERT_TRUE(cut(2));
  std::unique_ptr<Checkpoint> reader;
  EXPECT_EQ(agree([&] { reader = read_newest(); }), Settled::committed);
  ASSERT_TRUE(reader);
  EXPECT_EQ(reader->catalog().step, 2);
  for (std::uint64_t step = 3; step < 6; ++step) {
    if (cut(step)) {
      EXPECT_EQ(agree(), Settled::committed);
    }
    ASSERT_EQ(differs(*reader, 2), "") << step;
  }
}

TEST_P(Reading, AReaderThatDiedHoldsNothing) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::pipe(ends.data()), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto reader = formats::describe_ebb(tree());
    const char told = reader ? 'y' : 'n';
    static_cast<void>(::write(ends[1], &told, 1));
    ::pause();
  }
  char told = 0;
  ASSERT_EQ(::read(ends[0], &told, 1), 1);
  ASSERT_EQ(told, 'y');
  if (slots_ == 2) {
    EXPECT_FALSE(stores_[0]->can_cut());
  }
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  ::close(ends[0]);
  ::close(ends[1]);
  EXPECT_TRUE(stores_[0]->can_cut());
}

TEST_P(Reading, WhatCannotBeHeldIsSaidToHaveMovedAndNeverToBeDamaged) {
  const auto no_locks = std::make_shared<test_support::ForwardingTree>(tree());
  const auto reader = formats::describe_ebb(no_locks);
  ASSERT_TRUE(reader);
  for (std::uint64_t step = 2; step < 5; ++step) {
    ASSERT_TRUE(cut(step));
    ASSERT_EQ(agree(), Settled::committed);
  }
  const TensorEntry& w = (*reader)->catalog().tensors.at(0);
  ByteVector bytes(kTestTile);
  const auto read = (*reader)->read(w, w.chunks.at(0), 0, bytes);
  ASSERT_FALSE(read);
  EXPECT_EQ(read.error().code, Code::moved);
  EXPECT_NE(
      read.error().message.find("generation 1 was given up while it was read, the newest is 4"),
      std::string::npos)
      << read.error().message;
}

TEST_P(Reading, DamageInWhatIsHeldIsStillDamage) {
  const auto reader = read_newest();
  const Store::Place place = stores_[1]->read_place(2);
  const auto file =
      io_->backend().open(io_->backend().path_of(place.file), {.access = Access::read_write});
  ASSERT_TRUE(file);
  const ByteVector garbage(4096, std::byte{0x5a});
  ASSERT_TRUE(io_->write(*file, place.offset, garbage));
  EXPECT_NE(differs(*reader, 1).find("does not match its checksum"), std::string::npos);
}

// As tests/tools/live_store_test.cpp does it with the tools: readers come and go beside a
// trainer that snapshots every step, and each reads one whole generation.
TEST_P(Reading, EveryReaderBesideATrainerReadsOneWholeGeneration) {
  std::atomic<bool> stop = false;
  std::atomic<std::uint64_t> step = 1;
  std::thread trainer([&] {
    run_ranks(2, [&](std::uint32_t rank, Agreement& ranks) {
      for (;;) {
        const auto go_on = ranks.agree(stop ? 0 : 1);
        if (!go_on || *go_on == 0) return;
        const std::uint64_t now = step + 1;
        ASSERT_TRUE(write_tiles(*io_, *stores_[rank], now));
        const auto all_can = ranks.agree(stores_[rank]->can_cut() ? 1 : 0);
        ASSERT_TRUE(all_can);
        if (*all_can == 1) {
          stores_[rank]->cut(now);
          const Result<> prepared = stores_[rank]->prepare(manifest_of(rank));
          ASSERT_TRUE(stores_[rank]->agree(ranks, prepared));
        }
        ASSERT_TRUE(ranks.agree(0));
        if (rank == 0) step = now;
        ASSERT_TRUE(ranks.agree(0));
      }
    });
  });
  int given_up = 0;
  for (int reader = 0; reader < 40; ++reader) {
    const auto described = formats::describe_ebb(tree());
    ASSERT_TRUE(described) << described.error().message;
    const std::uint64_t until = step + 5;
    while (step < until) std::this_thread::yield();  // it takes five steps to read
    const auto w = (*described)->catalog().step;
    const std::string differs_in = differs(**described, static_cast<std::uint64_t>(*w));
    if (differs_in.empty()) continue;
    ++given_up;  // it came between R2 and R3
    EXPECT_NE(differs_in.find("was given up while it was read"), std::string::npos) << differs_in;
  }
  EXPECT_LT(given_up, 20);
  stop = true;
  trainer.join();
}

}  // namespace
}  // namespace ebb::libswap
