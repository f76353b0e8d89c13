// What a trainer finds again, how schedulers stop it, and a model that changed meanwhile.
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <map>

#include "ebb/libswap/sys/process.h"
#include "examples/gpt/trainer_state.h"
#include "tests/examples/gpt_train.h"

namespace ebb::gpt {
namespace {

TEST(LossScale, IsHalvedByAnOverflowAndDoubledAfterTwentyGoodSteps) {
  LossScale scale{.bits = 1};
  EXPECT_EQ(scale.value(), 2.0);
  for (std::uint32_t i = 1; i < LossScale::kGoodSteps; ++i) scale.went_well();
  EXPECT_TRUE(scale.overflowed());
  EXPECT_EQ(scale.bits, 0u);
  EXPECT_FALSE(scale.overflowed()) << "there is nothing below one";
  for (std::uint32_t i = 1; i < LossScale::kGoodSteps; ++i) scale.went_well();
  EXPECT_EQ(scale.bits, 0u) << "the good steps before an overflow do not count";
  scale.went_well();
  EXPECT_EQ(scale.bits, 1u);
  scale.bits = LossScale::kMostBits;
  for (std::uint32_t i = 0; i < LossScale::kGoodSteps; ++i) scale.went_well();
  EXPECT_EQ(scale.bits, LossScale::kMostBits);
}

class GptTrainResumed : public GptTrain {
 protected:
  // Of a result file: the number behind a key.
  static std::uint64_t number_in(const std::string& file, const std::string& key) {
    const std::string wanted = "  \"" + key + "\": ";
    std::ifstream in(file);
    for (std::string line; std::getline(in, line);)
      if (line.starts_with(wanted)) return std::stoull(line.substr(wanted.size()));
    ADD_FAILURE() << file << " has no " << key;
    return 0;
  }
};

// Gradients overflow at first: steps are skipped, and data run ahead of the steps.
TEST_F(GptTrainResumed, FindsItsDataItsGeneratorAndItsLossScaleAgain) {
  const std::string whole = folder_ / "whole.json", first = folder_ / "first.json",
                    second = folder_ / "second.json";
  const auto run = [&](const std::string& name, const std::string& steps, const std::string& json,
                       std::vector<std::string> more) {
    more.insert(more.end(),
                {"--swap", swap(name), "--steps", steps, "--json", json, "--sequence", "256"});
    const auto ran = train(more);
    EXPECT_EQ(ran.exit, 0) << ran.err;
    return ran;
  };
  const std::vector<std::string> begin = {"--seed", "5", "--loss-scale", "126"};
  run("whole", "4", whole, begin);
  const auto begun = run("parts", "2", first, begin);
  EXPECT_NE(begun.err.find("step 1 skipped: gradients overflow at a loss scale of 2^126"),
            std::string::npos)
      << begun.err;
  run("parts", "4", second, {"--ranks", "3"});
  EXPECT_EQ(content(swap("parts")), content(swap("whole")));
  for (const char* key : {"sequences", "loss_scale_bits"})
    EXPECT_EQ(number_in(second, key), number_in(whole, key)) << key;
  EXPECT_GT(number_in(first, "skipped_steps"), 0u);
  EXPECT_EQ(number_in(first, "skipped_steps") + number_in(second, "skipped_steps"),
            number_in(whole, "skipped_steps"));
  EXPECT_EQ(number_in(whole, "sequences"), 12 * (4 + number_in(whole, "skipped_steps")));
}

TEST_F(GptTrainResumed, StateGoesFromOwnersToShardsAndBackWithTheSameBits) {
  const auto run = [&](const std::string& name, const std::string& steps,
                       std::vector<std::string> more) {
    more.insert(more.end(), {"--swap", swap(name), "--steps", steps});
    const auto ran = train(more);
    EXPECT_EQ(ran.exit, 0) << ran.err;
  };
  const std::vector<std::string> preset = {"--preset", "torch"};
  run("owner", "6", preset);
  for (const auto& [steps, placement, ranks] :
       {std::array{"2", "shard", "4"}, {"4", "owner", "3"}, {"6", "shard", "2"}})
    run("moving", steps, {"--preset", "torch", "--placement", placement, "--ranks", ranks});
  EXPECT_EQ(content(swap("moving")), content(swap("owner")));
}

TEST_F(GptTrainResumed, TallMatricesAreStreamedWithTheSameBits) {
  const auto run = [&](const std::string& name, const std::string& steps,
                       std::vector<std::string> more) {
    more.insert(more.end(), {"--swap", swap(name), "--steps", steps, "--preset", "gram"});
    const auto ran = train(more);
    EXPECT_EQ(ran.exit, 0) << ran.err;
  };
  run("whole", "4", {});
  run("streamed", "2", {"--stream-above", "4KiB", "--ranks", "3"});
  run("streamed", "4", {"--stream-above", "0", "--ranks", "2", "--budget", "400KiB"});
  EXPECT_EQ(content(swap("streamed")), content(swap("whole")));
}

TEST_F(GptTrainResumed, ASchedulersSignalsEndItWithASnapshotAndExitCodeZero) {
  for (const int signal : {SIGUSR1, SIGTERM}) {
    const std::string name = std::to_string(signal);
    auto child =
        libswap::ChildProcess::start(small({EBB_BIN "/gpt-train", "--swap", swap(name), "--steps",
                                            "100000", "--snapshot-every", "100000", "--quiet"}),
                                     libswap::ChildProcess::Stream::messages);
    ASSERT_TRUE(child);
    std::string line;
    const auto read_until = [&](const std::string& beginning) {
      while (!line.starts_with(beginning)) {
        const auto next = child->read_line();
        ASSERT_TRUE(next && *next) << "it ended before it said " << beginning;
        line = **next;
      }
    };
    read_until("step  10/");
    // A scheduler may say it more than once.
    for (const int again : {signal, SIGTERM}) kill(static_cast<pid_t>(child->id()), again);
    read_until("stopped at step ");
    const auto exit = child->wait();
    ASSERT_TRUE(exit);
    EXPECT_EQ(exit->code, 0);
    EXPECT_EQ(exit->signal, 0);
    const std::string step = line.substr(16, line.find(',') - 16);
    const auto resumed = train({"--swap", swap(name), "--steps", step});
    EXPECT_NE(resumed.err.find("resumed the store at step " + step), std::string::npos)
        << resumed.err;
  }
}

// Lines of a store's content that are about the weights of some parameters.
std::string weights_of(const std::string& content, const std::string& names) {
  std::string lines;
  std::string tensor;
  for (std::size_t at = 0, end = 0; at < content.size(); at = end + 1) {
    end = std::min(content.find('}', at), content.size());
    tensor = content.substr(at, end - at);
    if (tensor.find("\"" + names) != std::string::npos &&
        tensor.find("\"master\"") != std::string::npos)
      lines += tensor.substr(tensor.find("\"" + names)) + "\n";
  }
  return lines;
}

TEST_F(GptTrainResumed, AModelThatGainedFrozeAndLostBlocksGoesOn) {
  const auto run = [&](std::vector<std::string> flags, const std::string& steps) {
    flags.insert(flags.end(), {"--swap", swap("model"), "--steps", steps});
    const auto ran = train(flags);
    EXPECT_EQ(ran.exit, 0) << ran.err;
    return ran.err;
  };
  const auto says = [](const std::string& all, const std::string& part) {
    EXPECT_NE(all.find(part), std::string::npos) << all;
  };
  run({"--layers", "2"}, "1");
  const std::string before = weights_of(content(swap("model")), "blocks.0.");
  const std::string grown = run({"--layers", "3", "--freeze", "blocks.0.*"}, "3");
  says(grown, "new: blocks.2.attention.gain, blocks.2.attention.query.weight,");
  says(grown, "by AdamW from zero moments: blocks.0.attention.query.weight,");
  ASSERT_FALSE(before.empty());
  EXPECT_EQ(weights_of(content(swap("model")), "blocks.0."), before);
  const std::string three = content(swap("model"));
  const auto refused =
      train({"--swap", swap("model"), "--steps", "4", "--layers", "1", "--ranks", "2"});
  EXPECT_EQ(refused.exit, 2) << refused.err;
  says(refused.err, "holds state of parameters that the model has not: blocks.1.");
  says(refused.err, " and 8 more");
  says(refused.err, "--allow-dropped goes on without their state");
  EXPECT_EQ(content(swap("model")), three);
  says(run({"--layers", "1", "--ranks", "2", "--allow-dropped"}, "4"),
       "not in the model any more: blocks.1.");
  EXPECT_NE(weights_of(content(swap("model")), "blocks.0."), before);
}

}  // namespace
}  // namespace ebb::gpt
