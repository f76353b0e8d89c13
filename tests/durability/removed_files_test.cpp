// Files of a store that somebody removes, cuts or moves while engines use it: the next commit says
// whose, which and what on every rank, and the state is kept elsewhere with the bits of a run that
// nothing happened to.
#include <filesystem>

#include "tests/durability/machines.h"
#include "tests/libmuon/support/failing_world.h"

namespace ebb::test {
namespace {

namespace fs = std::filesystem;
using libmuon::Communicator;

struct Loss {
  const char* said;
  void (*lose)(const fs::path& swap, const fs::path& rank);
};
constexpr Loss kLosses[] = {
    {"was removed while", [](const fs::path& swap, const fs::path&) { fs::remove_all(swap); }},
    {"was removed while",
     [](const fs::path&, const fs::path& rank) {
       for (const auto& entry : fs::directory_iterator(rank))
         if (entry.path().extension() == ".data") fs::remove(entry.path());
     }},
    {"was removed while",
     [](const fs::path&, const fs::path& rank) { fs::remove(rank / "meta.ebb"); }},
    {"was cut here",
     [](const fs::path&, const fs::path& rank) { fs::resize_file(rank / "meta.ebb", 4096); }},
    {"was moved away",
     [](const fs::path& swap, const fs::path&) { fs::rename(swap, swap.string() + "-moved"); }},
};

Result<> lose_and_go_on(World& world, Communicator& ranks, const Loss& loss,
                        const fs::path& folder) {
  EBB_TRY_ASSIGN(auto rank, RankEngine::open(world, ranks, machines_config(2)));
  libmuon::Engine& engine = rank.engine();
  EBB_TRY(step_to(rank, 2));
  EBB_TRY(rank.commit());
  EBB_TRY(ranks.agree(0));
  if (ranks.rank() == Rank{0})
    loss.lose(folder / "swap", engine.store_directory() / "rank-00001-of-00002");
  EBB_TRY(ranks.agree(0));
  EBB_TRY(step_to(rank, 3));
  const auto committed = rank.commit();
  expect_error(committed, Code::state, loss.said);
  if (committed) return {};
  const Error& error = committed.error();
  EXPECT_NE(error.message.find(loss.said), std::string::npos) << error.message;
  EXPECT_NE(error.message.find("rank "), std::string::npos) << error.message;
  EXPECT_EQ(error.hint.find("will be recovered"), std::string::npos) << error.hint;
  EBB_TRY_ASSIGN(const auto other,
                 libswap::SwapDirectory::open(world.io(), folder / "other", ranks));
  EBB_TRY(engine.save_to(*other));
  EBB_TRY(step_to(rank, 4));
  EBB_TRY(rank.commit());
  EXPECT_TRUE(rank.flat_weights() == wanted_weights().at(4)) << loss.said;
  return {};
}

TEST(RemovedFiles, AreSaidByWhoseTheyWereAndTheStateIsKeptElsewhere) {
  for (const Loss& loss : kLosses) {
    const TempDir folder;
    {
      World world(disk(), folder.path() / "swap", 2);
      expect_well(world.run(
          [&](Communicator& ranks) { return lose_and_go_on(world, ranks, loss, folder.path()); }));
    }
    World again(disk(), folder.path() / "other", 2);
    expect_well(again.run([&](Communicator& ranks) -> Result<> {
      EBB_TRY_ASSIGN(auto rank, RankEngine::open(again, ranks, machines_config(2)));
      EXPECT_EQ(rank.engine().step_count(), 4u);
      EBB_TRY(step_to(rank, 5));
      EXPECT_TRUE(rank.flat_weights() == wanted_weights().at(5)) << loss.said;
      return {};
    }));
  }
}

}  // namespace
}  // namespace ebb::test
