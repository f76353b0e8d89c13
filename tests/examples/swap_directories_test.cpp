// State in several directories: which rank pages where, and how a run on other ranks finds it all.
#include "examples/gpt/swap_directories.h"

#include <filesystem>

#include "tests/examples/gpt_train.h"

namespace ebb::gpt {
namespace {

TEST(SwapDirectories, AreSharedOutToTheRanksInTurn) {
  const auto shared_out = [](std::size_t directories, std::uint32_t world,
                             std::vector<double> weights = {}) {
    SwapPaths swap;
    for (std::size_t i = 0; i < directories; ++i) swap.directories.push_back(std::to_string(i));
    swap.weights = std::move(weights);
    std::string all;
    const auto own = directories_of(swap, world);
    EXPECT_TRUE(own);
    for (const auto& directory : *own) all += directory.string();
    return all;
  };
  EXPECT_EQ(shared_out(1, 3), "000");
  EXPECT_EQ(shared_out(2, 4), "0011");
  EXPECT_EQ(shared_out(3, 4), "0012");
  EXPECT_EQ(shared_out(4, 4), "0123");
  EXPECT_EQ(shared_out(2, 4, {1, 3}), "0111");
  EXPECT_EQ(shared_out(4, 2), "01") << "the others are an earlier run's";
}

class GptTrainOnSeveral : public GptTrain {};

TEST_F(GptTrainOnSeveral, AnotherNumberOfRanksFindsWhatLiesInAllDirectories) {
  ASSERT_EQ(train({"--swap", swap("plain"), "--steps", "3", "--ranks", "1"}).exit, 0);
  const auto begun = train({"--swap", swap("a"), swap("b"), "--steps", "2"});
  ASSERT_EQ(begun.exit, 0) << begun.err;

  const auto lost = train({"--swap", swap("a"), "--steps", "3", "--ranks", "2"});
  EXPECT_EQ(lost.exit, 3) << lost.err;
  EXPECT_NE(lost.err.find("rank-00002-of-00004"), std::string::npos) << lost.err;
  EXPECT_NE(lost.err.find("; lost with it: "), std::string::npos) << lost.err;

  const auto gathered =
      train({"--swap", swap("c"), swap("a"), swap("b"), "--ranks", "1", "--steps", "3"});
  ASSERT_EQ(gathered.exit, 0) << gathered.err;
  EXPECT_NE(gathered.err.find("transferred the store of 4 ranks at step 2"), std::string::npos)
      << gathered.err;
  EXPECT_EQ(content(swap("c")), content(swap("plain")));

  const auto spread =
      train({"--swap", swap("a"), swap("b"), swap("c"), "--ranks", "2", "--steps", "3"});
  ASSERT_EQ(spread.exit, 0) << spread.err;
  EXPECT_NE(spread.err.find("transferred the store of 1 ranks at step 3"), std::string::npos)
      << spread.err;
  const auto resumed = train({"--swap", swap("a"), swap("b"), "--ranks", "2", "--steps", "3"});
  EXPECT_NE(resumed.err.find("resumed the store at step 3"), std::string::npos) << resumed.err;
}

// As ckpt-inspect takes it, and Ebb itself prints it.
TEST_F(GptTrainOnSeveral, AStoreInPlaceOfItsDirectoryIsRefusedWithTheDirectorysName) {
  ASSERT_EQ(train({"--swap", swap("sw"), "--steps", "1"}).exit, 0);
  std::filesystem::path store;
  for (const auto& entry : std::filesystem::directory_iterator(swap("sw")))
    if (entry.path().filename().string().starts_with("store-")) store = entry.path();
  for (const auto& given : {store, store / "rank-00000-of-00004"}) {
    const auto refused = train({"--swap", given.string(), "--steps", "2"});
    EXPECT_EQ(refused.exit, 2) << refused.err;
    EXPECT_NE(refused.err.find("store, not a directory that holds stores"), std::string::npos)
        << refused.err;
    EXPECT_NE(refused.err.find("lies in: " + swap("sw")), std::string::npos) << refused.err;
  }
  std::filesystem::rename(store, swap("sw") + "/mine");
  const auto renamed = train({"--swap", swap("sw"), "--steps", "2"});
  EXPECT_EQ(renamed.exit, 2) << renamed.err;
  EXPECT_NE(renamed.err.find(store.filename().string()), std::string::npos) << renamed.err;
}

TEST_F(GptTrainOnSeveral, MoreDirectoriesThanRanksAreRefusedWhereNoneHoldsAStore) {
  const auto refused = train({"--swap", swap("a"), swap("b"), "--ranks", "1", "--steps", "1"});
  EXPECT_EQ(refused.exit, 2) << refused.err;
  EXPECT_NE(refused.err.find("--swap names 2 directories for 1 ranks"), std::string::npos)
      << refused.err;
}

}  // namespace
}  // namespace ebb::gpt
