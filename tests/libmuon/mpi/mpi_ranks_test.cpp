// Ranks over MPI: what every Communicator owes, and what this one owes MPI. Started by mpirun with
// eight processes; all of them run all tests, side by side.
#include <gtest/gtest.h>
#include <mpi.h>

#include <cstdio>
#include <memory>

#include "ebb/libmuon/comm/mpi_ranks.h"
#include "tests/libmuon/comm/ranks_contract.h"

namespace ebb::libmuon {
namespace {

constexpr int kProcesses = 8;

int my_number() {
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  return rank;
}

// The first processes of all; the others wait.
struct MpiKind {
  static void run(std::uint32_t world, milliseconds limit, const RankBody& body) {
    const int me = my_number();
    const bool inside = me < static_cast<int>(world);
    MPI_Comm part = MPI_COMM_NULL;
    MPI_Comm_split(MPI_COMM_WORLD, inside ? 0 : MPI_UNDEFINED, me, &part);
    if (inside) {
      const auto ranks = make_mpi_ranks(part, limit);
      EXPECT_TRUE(ranks) << ranks.error().message;
      if (ranks) body(**ranks);
    }
    if (inside) MPI_Comm_free(&part);
    MPI_Barrier(MPI_COMM_WORLD);
  }
};

INSTANTIATE_TYPED_TEST_SUITE_P(OverMpi, RanksOfAnyKind, MpiKind);

// Whatever a test does, the next one begins on all processes at once.
class MpiRanks : public testing::Test {
 protected:
  ~MpiRanks() override { MPI_Barrier(MPI_COMM_WORLD); }
};

TEST_F(MpiRanks, LeaveTheCallersErrorsAsTheyWere) {
  MPI_Comm mine = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &mine);
  for (const MPI_Errhandler wanted : {MPI_ERRORS_ARE_FATAL, MPI_ERRORS_RETURN}) {
    MPI_Comm_set_errhandler(mine, wanted);
    const auto ranks = make_mpi_ranks(mine);
    ASSERT_TRUE(ranks);
    EXPECT_TRUE((*ranks)->agree(0));
    MPI_Errhandler found = MPI_ERRHANDLER_NULL;
    MPI_Comm_get_errhandler(mine, &found);
    EXPECT_EQ(found, wanted);
    MPI_Errhandler_free(&found);
  }
  MPI_Comm_free(&mine);
}

// A call that MPI refuses is an answer, also where the caller's errors end the job.
TEST_F(MpiRanks, AreAnsweredTheErrorsOfMpi) {
  MPI_Comm mine = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &mine);
  MPI_Comm_set_errhandler(mine, MPI_ERRORS_ARE_FATAL);
  {
    const auto transport = mpi::MpiTransport::open(mine, milliseconds(10000));
    ASSERT_TRUE(transport);
    const auto refused = (*transport)->send(Rank{99}, 1, ByteVector(8));
    ASSERT_FALSE(refused);
    EXPECT_EQ(refused.error().code, Code::peer);
    EXPECT_TRUE(refused.error().message.starts_with("MPI_Isend: ")) << refused.error().message;
  }
  MPI_Comm_free(&mine);
}

struct Copies {
  int made = 0, freed = 0;
};
int copied(MPI_Comm, int, void* state, void* in, void* out, int* keep) {
  ++static_cast<Copies*>(state)->made;
  *static_cast<void**>(out) = in;
  *keep = 1;
  return MPI_SUCCESS;
}
int freed(MPI_Comm, int, void*, void* state) {
  ++static_cast<Copies*>(state)->freed;
  return MPI_SUCCESS;
}

TEST_F(MpiRanks, FreeTheCommunicatorThatTheyMade) {
  Copies copies;
  int key = MPI_KEYVAL_INVALID;
  MPI_Comm mine = MPI_COMM_NULL;
  MPI_Comm_dup(MPI_COMM_WORLD, &mine);
  MPI_Comm_create_keyval(copied, freed, &key, &copies);
  MPI_Comm_set_attr(mine, key, &copies);
  for (int again = 1; again <= 20; ++again) {
    {
      auto ranks = make_mpi_ranks(mine);
      ASSERT_TRUE(ranks);
      const auto other = (*ranks)->duplicate();
      ASSERT_TRUE(other);
      ASSERT_TRUE((*other)->agree(again));
    }
    EXPECT_EQ(copies.made, again) << "one communicator of MPI for all duplicates";
    EXPECT_EQ(copies.freed, again);
  }
  MPI_Comm_free_keyval(&key);
  MPI_Comm_free(&mine);
}

// With the very tags that the ranks use among themselves.
TEST_F(MpiRanks, DoNotTakeTheCallersMessages) {
  const int me = my_number(), next = (me + 1) % kProcesses;
  const int before = (me + kProcesses - 1) % kProcesses;
  std::array<int, 4> out{}, in{};
  std::array<MPI_Request, 8> requests{};
  for (int tag = 0; tag < 4; ++tag) {
    out[static_cast<std::size_t>(tag)] = 100 * me + tag;
    MPI_Isend(&out[static_cast<std::size_t>(tag)], 1, MPI_INT, next, tag, MPI_COMM_WORLD,
              &requests[static_cast<std::size_t>(tag)]);
  }
  {
    const auto ranks = make_mpi_ranks(MPI_COMM_WORLD);
    ASSERT_TRUE(ranks);
    for (int number = 0; number < 6; ++number) EXPECT_TRUE(call(**ranks, number));
  }
  for (int tag = 0; tag < 4; ++tag)
    MPI_Irecv(&in[static_cast<std::size_t>(tag)], 1, MPI_INT, before, tag, MPI_COMM_WORLD,
              &requests[static_cast<std::size_t>(4 + tag)]);
  MPI_Waitall(8, requests.data(), MPI_STATUSES_IGNORE);
  for (int tag = 0; tag < 4; ++tag)
    EXPECT_EQ(in[static_cast<std::size_t>(tag)], 100 * before + tag);
}

// As a trainer with several axes has them: one world a part, all at once.
TEST_F(MpiRanks, OfPartsOfTheWorldKnowNothingOfEachOther) {
  const int me = my_number(), color = me % 2;
  MPI_Comm part = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, color, -me, &part);  // ranks in the other order
  const auto ranks = make_mpi_ranks(part);
  ASSERT_TRUE(ranks);
  EXPECT_EQ((*ranks)->world(), 4u);
  EXPECT_EQ(index_of((*ranks)->rank()), static_cast<std::uint32_t>((kProcesses - 1 - me) / 2));
  std::vector<std::int64_t> numbers = {me};
  ASSERT_TRUE((*ranks)->sum(numbers));
  EXPECT_EQ(numbers[0], color == 0 ? 0 + 2 + 4 + 6 : 1 + 3 + 5 + 7);
  if (color == 0) (*ranks)->abort();
  EXPECT_EQ((*ranks)->agree(0).has_value(), color == 1);
  MPI_Comm_free(&part);
}

TEST_F(MpiRanks, RefuseWhatIsNoWorld) {
  const auto none = make_mpi_ranks(MPI_COMM_NULL);
  ASSERT_FALSE(none);
  EXPECT_EQ(none.error().code, Code::usage);
  const int me = my_number(), half = me / 4;
  MPI_Comm part = MPI_COMM_NULL, between = MPI_COMM_NULL;
  MPI_Comm_split(MPI_COMM_WORLD, half, me, &part);
  MPI_Intercomm_create(part, 0, MPI_COMM_WORLD, half == 0 ? 4 : 0, 7, &between);
  const auto refused = make_mpi_ranks(between);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::usage);
  EXPECT_EQ(refused.error().message, "make_mpi_ranks: a communicator between two groups");
  MPI_Comm_free(&between);
  MPI_Comm_free(&part);
}

TEST_F(MpiRanks, NameLimitsThatDifferOnEveryRank) {
  const auto refused = make_mpi_ranks(MPI_COMM_WORLD, milliseconds(my_number() == 3 ? 500 : 9000));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::usage);
  EXPECT_EQ(refused.error().message, "rank 0 waits 9000 ms for its peers, rank 3 500 ms");
}

TEST_F(MpiRanks, ThatAreNotMadeOnAllAreACodePeerWithinTheLimit) {
  if (my_number() != 2) {
    const Alarm alarm(kLimit * 2);
    const auto alone = make_mpi_ranks(MPI_COMM_WORLD, kLimit);
    ASSERT_FALSE(alone);
    EXPECT_EQ(alone.error().code, Code::peer);
    EXPECT_FALSE(alarm.rang());
    return;
  }
  // Comes when the others have given up: what MPI began is brought to its end.
  std::this_thread::sleep_for(kLimit * 3);
  const auto late = make_mpi_ranks(MPI_COMM_WORLD, kLimit);
  EXPECT_FALSE(late);
}

}  // namespace
}  // namespace ebb::libmuon

namespace {

// One voice in eight; of the others only what failed.
class Failures : public testing::EmptyTestEventListener {
  void OnTestPartResult(const testing::TestPartResult& result) override {
    if (!result.failed()) return;
    int rank = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    std::fprintf(stderr, "process %d: %s:%d: %s\n", rank, result.file_name(), result.line_number(),
                 result.message());
  }
};

int run_all(int* argc, char** argv) {
  testing::InitGoogleTest(argc, argv);
  int rank = 0, world = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world);
  if (world != 8) {
    std::fprintf(stderr, "start it with mpirun -n 8, not %d\n", world);
    return 2;
  }
  testing::TestEventListeners& listeners = testing::UnitTest::GetInstance()->listeners();
  if (rank != 0) {
    delete listeners.Release(listeners.default_result_printer());
    listeners.Append(new Failures);
  }
  int mine = RUN_ALL_TESTS(), all = 0;
  MPI_Allreduce(&mine, &all, 1, MPI_INT, MPI_MAX, MPI_COMM_WORLD);
  return all;
}

}  // namespace

int main(int argc, char** argv) {
  int granted = 0;
  MPI_Init_thread(&argc, &argv, MPI_THREAD_MULTIPLE, &granted);
  const int answer = run_all(&argc, argv);
  MPI_Finalize();
  return answer;
}
