// together_reading(): each rank reads what others hold, when it likes, over threads and over
// processes.
#include <gtest/gtest.h>

#include <thread>

#include "tests/libmuon/comm/kinds.h"
#include "tests/libmuon/comm/rounds.h"

namespace ebb::libmuon {
namespace {

using libswap::FilesApart;
using libswap::ReadThere;
using std::chrono::milliseconds;

// File f of rank r is pattern(r, f, size).
constexpr std::size_t kFile = 100000;

FilesApart files_of(const Communicator& comm) {
  return {.read = [&comm](std::uint32_t file, std::uint64_t offset,
                          std::span<std::byte> into) -> Result<> {
            if (offset + into.size() > kFile)
              return Error{Code::io, compose("file {}: ends at {}", file, kFile)};
            const auto whole = pattern(index_of(comm.rank()), file, kFile);
            std::ranges::copy(std::span(whole).subspan(offset, into.size()), into.begin());
            return {};
          },
          .who = {}};
}

bool reads_right(const ReadThere& there, Rank holder, std::uint32_t file, std::uint64_t offset,
                 std::size_t size) {
  std::vector<std::byte> bytes(size);
  const auto whole = pattern(index_of(holder), file, kFile);
  return there(holder, file, offset, bytes) &&
         std::ranges::equal(bytes, std::span(whole).subspan(offset, size));
}

template <typename Kind>
class ReadingRemotely : public RanksOfAnyKind<Kind> {};
TYPED_TEST_SUITE(ReadingRemotely, Kinds);

// Some ranks want much, one wants nothing, from several threads at once.
TYPED_TEST(ReadingRemotely, EveryRankGetsWhatItWantsWhenItWantsIt) {
  this->on_ranks(3, [](Communicator& comm) {
    const std::uint32_t me = index_of(comm.rank());
    const auto read_some = [&](const ReadThere& there, std::uint32_t thread) {
      for (std::uint32_t i = 0; me != 2 && i < 20; ++i)
        EXPECT_TRUE(reads_right(there, Rank{(me + 1 + i % 2) % 3}, thread, i * 1000, i * 777 + 1));
    };
    for (int again = 0; again < 2; ++again)
      EXPECT_TRUE(
          comm.together_reading("reading", files_of(comm), [&](const ReadThere& there) -> Result<> {
            std::thread other([&] { read_some(there, 1); });
            read_some(there, 0);
            other.join();
            return {};
          }));
    EXPECT_TRUE(comm.agree(0));
  });
}

TEST(ReadingFromThreads, MoreThanARoundHoldsComesInSeveral) {
  ThreadKind::run(2, kPeerLimit, [](Communicator& comm) {
    constexpr std::size_t kMuch = 300u << 20;
    const auto fill = [](std::uint32_t, std::uint64_t offset, std::span<std::byte> into) {
      for (std::size_t i = 0; i < into.size(); i += 4096)
        into[i] = static_cast<std::byte>((offset + i) >> 12 & 0xff);
      return Result<>();
    };
    const FilesApart files{.read = fill, .who = {}};
    EXPECT_TRUE(comm.together_reading("reading", files, [&](const ReadThere& there) -> Result<> {
      if (index_of(comm.rank()) == 1) return {};
      std::vector<std::byte> bytes(kMuch);
      std::vector<std::thread> threads;
      for (std::size_t part = 0; part < 20; ++part)
        threads.emplace_back([&, at = part * (kMuch / 20)] {
          EXPECT_TRUE(there(Rank{1}, 0, at, std::span(bytes).subspan(at, kMuch / 20)));
        });
      for (std::thread& thread : threads) thread.join();
      for (std::size_t i = 0; i < kMuch; i += 4096)
        if (bytes[i] != static_cast<std::byte>(i >> 12 & 0xff))
          return Error{Code::layout, "wrong bytes"};
      return {};
    }));
  });
}

TYPED_TEST(ReadingRemotely, AReadThatFailsThereFailsHereAndNothingElse) {
  this->on_ranks(2, [](Communicator& comm) {
    const auto done =
        comm.together_reading("reading", files_of(comm), [&](const ReadThere& there) -> Result<> {
          if (index_of(comm.rank()) == 1) return {};
          std::vector<std::byte> bytes(100);
          const auto refused = there(Rank{1}, 7, kFile - 1, bytes);
          EXPECT_FALSE(refused);
          EXPECT_EQ(refused.error().code, Code::peer);
          EXPECT_EQ(refused.error().message,
                    "rank 1 could not read for this one: file 7: ends at 100000");
          EXPECT_TRUE(reads_right(there, Rank{1}, 7, 10, 100));
          return refused;
        });
    ASSERT_FALSE(done);
    EXPECT_EQ(done.error().code, Code::peer);
  });
}

TYPED_TEST(ReadingRemotely, ARankThatDiesAnswersItsReadersWithAnError) {
  this->on_ranks(
      3,
      [](Communicator& comm) {
        if (index_of(comm.rank()) == 2) return;
        const auto done = comm.together_reading("reading", files_of(comm),
                                                [&](const ReadThere& there) -> Result<> {
                                                  std::vector<std::byte> bytes(100);
                                                  return there(Rank{2}, 0, 0, bytes);
                                                });
        ASSERT_FALSE(done);
        EXPECT_EQ(done.error().code, Code::peer);
        EXPECT_EQ(done.error().message, "rank 2 gave up");
      },
      milliseconds(5000));
}

TYPED_TEST(ReadingRemotely, LongWorkThatReadsNothingIsNoSilence) {
  this->on_ranks(
      2,
      [](Communicator& comm) {
        EXPECT_TRUE(
            comm.together_reading("sleeping", files_of(comm), [&](const ReadThere&) -> Result<> {
              if (index_of(comm.rank()) == 1) std::this_thread::sleep_for(milliseconds(1200));
              return {};
            }));
      },
      milliseconds(400));
}

}  // namespace
}  // namespace ebb::libmuon
