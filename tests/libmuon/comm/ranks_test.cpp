// Every kind of ranks that needs nobody else, and what happens to one kind only.
#include <unistd.h>

#include <csignal>

#include "tests/libmuon/comm/kinds.h"
#include "tests/libmuon/comm/ranks_contract.h"

namespace ebb::libmuon {
namespace {

INSTANTIATE_TYPED_TEST_SUITE_P(InOneSystem, RanksOfAnyKind, Kinds);

// What happens to processes only.
TEST(SocketRanks, AKilledProcessIsAPeerErrorOnAllOthers) {
  for (int number = 0; number < 3; ++number) {
    const auto answers =
        test::run_processes(3, kPeerLimit, [&](std::unique_ptr<Communicator> comm) {
          EXPECT_TRUE(comm->agree(0));
          if (index_of(comm->rank()) == 2) ::kill(::getpid(), SIGKILL);
          expect_error(call(*comm, number), Code::peer, "rank 2 is gone: its process ended");
          expect_error(call(*comm, number), Code::peer, "rank 2 is gone: its process ended");
          return testing::Test::HasFailure() ? 1 : 0;
        });
    EXPECT_EQ(answers, (std::vector<int>{0, 0, -SIGKILL}));
  }
}

}  // namespace
}  // namespace ebb::libmuon
