// Tensors that are not read, as a user of the tools meets them: named, counted, and in the way of
// nothing but themselves.
#include <gtest/gtest.h>

#include <fstream>
#include <functional>

#include "tests/support/archives.h"
#include "tests/support/pickled_tensors.h"
#include "tests/support/program.h"

namespace ebb {

namespace {

using formats::PickleWriter;
using test_support::Outcome;
using test_support::plain_tensor;
using test_support::run_program;
using test_support::says;
using test_support::ScratchDirectory;

using Write = std::function<void(PickleWriter&)>;

Write subclass(std::string module, std::string name) {
  return [=](PickleWriter& pickle) {
    test_support::wrapper_subclass(pickle, module, name, {4, 3}, [&] { pickle.empty_dict(); });
  };
}

void plain(PickleWriter& pickle) { plain_tensor(pickle, "1", {4, 3}); }

const Write k8Bit = subclass("torchao.optim.subclass_8bit", "OptimState8bit");
const Write kDTensor = subclass("torch.distributed.tensor", "DTensor");

class Unread : public testing::Test {
 protected:
  // Two parameters with a state each.
  void save(const Write& weight, const Write& state) {
    PickleWriter pickle;
    pickle.dict([&] {
      pickle.dict("model", [&] {
        for (const char* name : {"a", "b"}) {
          pickle.string(name);
          weight(pickle);
        }
      });
      pickle.dict("optimizer", [&] {
        pickle.dict("state", [&] {
          for (const char* name : {"a", "b"})
            pickle.dict(name, [&] {
              pickle.string("exp_avg");
              state(pickle);
            });
        });
      });
    });
    write(test_support::archive_around(pickle.finish()));
  }
  void write(const ByteVector& bytes) {
    std::ofstream(path(), std::ios::binary) << formats::text_of(bytes);
  }
  std::string path() const { return scratch_ / "x.pt"; }
  Outcome inspect(std::vector<std::string> flags = {}) const {
    flags.insert(flags.begin(), path());
    return run_program("ckpt-inspect", flags);
  }
  Outcome convert(const std::string& to, std::vector<std::string> flags) const {
    flags.insert(flags.begin(), {path(), scratch_ / to});
    return run_program("ckpt-convert", flags);
  }

  ScratchDirectory scratch_;
};

TEST_F(Unread, StatesAreOnEveryScreenAndTheRestIsSound) {
  save(plain, k8Bit);
  const Outcome screen = inspect();
  EXPECT_EQ(screen.exit, 0) << screen.err;
  EXPECT_TRUE(says(screen.out, "not read  2 tensors (exp_avg 2): torchao's 8-bit state"))
      << screen.out;
  EXPECT_TRUE(says(screen.out, "yes, as far as it is read")) << screen.out;
  const Outcome json = inspect({"--json"});
  EXPECT_TRUE(says(json.out, R"("unread": [{"key": "optimizer.state.a.exp_avg", "name": "a",)"))
      << json.out;
  const Outcome list = inspect({"--tensors"});
  EXPECT_TRUE(says(list.out, "not read: b (exp_avg): torchao's 8-bit state")) << list.out;
  const Outcome verified = inspect({"--verify"});
  EXPECT_EQ(verified.exit, 4) << verified.out;
  EXPECT_TRUE(says(verified.out, "sound, 2 tensors")) << verified.out;
  EXPECT_TRUE(says(verified.out, "2 tensors not read: torchao's 8-bit state")) << verified.out;
  EXPECT_EQ(inspect({"--verify", "--state", "param"}).exit, 0);
}

TEST_F(Unread, StatesAreNamedWhereverTensorsAreListed) {
  save(plain, k8Bit);
  const std::string map = scratch_ / "map.html";
  const std::string json = R"("unread": [{"key": "optimizer.state.a.exp_avg", "name": "a",)";
  for (const std::vector<std::string>& mode :
       std::vector<std::vector<std::string>>{{"--stats"}, {"--shards"}, {"--map", map}}) {
    const Outcome run = inspect(mode);
    EXPECT_EQ(run.exit, 0) << run.err;
    EXPECT_TRUE(says(run.out, "not read  2 tensors (exp_avg 2): torchao's 8-bit state"))
        << mode[0] << ": " << run.out;
    std::vector<std::string> weights = mode;
    weights.insert(weights.end(), {"--state", "param"});
    EXPECT_FALSE(says(inspect(weights).out, "not read")) << mode[0];
    std::vector<std::string> as_json = mode;
    as_json.emplace_back("--json");
    EXPECT_TRUE(says(inspect(as_json).out, json)) << mode[0] << ": " << inspect(as_json).out;
  }
  inspect({"--map", map});
  std::ifstream file(map);
  const std::string page{std::istreambuf_iterator<char>(file), {}};
  EXPECT_TRUE(says(page, "2 tensors not read: torchao's 8-bit state")) << page.substr(0, 2000);
  save(kDTensor, kDTensor);
  for (const char* mode : {"--stats", "--shards"}) EXPECT_EQ(inspect({mode}).exit, 4) << mode;
}

// Transformer Engine's modules keep one beside their weights.
TEST_F(Unread, AnExtraStateIsNoParameter) {
  PickleWriter pickle;
  pickle.dict([&] {
    pickle.dict("model", [&] {
      for (const char* name : {"block.weight", "block._extra_state"}) {
        pickle.string(name);
        plain(pickle);
      }
    });
  });
  write(test_support::archive_around(pickle.finish()));
  const Outcome screen = inspect();
  EXPECT_TRUE(says(screen.out, "holds     1 parameter, 2 tensors")) << screen.out;
}

TEST_F(Unread, StatesAreNotCalledTheSame) {
  save(plain, k8Bit);
  const Outcome same = inspect({"--diff", path()});
  EXPECT_EQ(same.exit, 4) << same.out;
  EXPECT_TRUE(says(same.out, "same: 2 tensors")) << same.out;
  EXPECT_TRUE(says(same.out, "not compared, on the left: 2 tensors not read: torchao's 8-bit"))
      << same.out;
}

TEST_F(Unread, StatesLeaveTheWeightsAndEveryOtherConversionSaysWhatToDo) {
  save(plain, k8Bit);
  const Outcome weights = convert("w", {"--weights"});
  EXPECT_EQ(weights.exit, 0) << weights.err;
  EXPECT_TRUE(says(weights.out + weights.err, "2 tensors")) << weights.out;
  EXPECT_EQ(convert("p", {"--to", "dcp", "--states", "param"}).exit, 0);
  const Outcome refused = convert("d", {"--to", "dcp"});
  EXPECT_EQ(refused.exit, 4) << refused.err;
  EXPECT_TRUE(says(refused.err, "2 tensors not read: tensor 'a' (exp_avg): torchao's 8-bit state"))
      << refused.err;
  EXPECT_TRUE(says(refused.err, "--weights")) << refused.err;
  EXPECT_TRUE(says(refused.err, "--drop")) << refused.err;
  EXPECT_EQ(convert("l", {"--to", "dcp", "--drop"}).exit, 0);
}

// A command that would be refused as it is typed is none. The fixture: FSDP1's
// optimizer.state_dict() beside a sharded model, where each rank has flat states of its own
// (torch 2.13).
TEST(UnreadStates, AreNamedByExplainResumeInPlaceOfTheCommand) {
  const Outcome run =
      run_program("ckpt-inspect", {"faults/torch_fsdp1_flat_w2", "--explain-resume", "3"});
  EXPECT_EQ(run.exit, 1) << run.err;
  EXPECT_FALSE(says(run.out, "ckpt-convert")) << run.out;
  EXPECT_TRUE(says(run.out, "leaves out what is not read (--drop): 6 tensors not read")) << run.out;
  const Outcome all =
      run_program("ckpt-inspect", {"torch/ranks_hybrid_w4/data", "--explain-resume", "3"});
  EXPECT_TRUE(says(all.out, "command   ckpt-convert")) << all.out;
}

TEST_F(Unread, AWeightIsInTheWayOfTheWeights) {
  save(kDTensor, plain);
  const Outcome refused = convert("w", {"--weights"});
  EXPECT_EQ(refused.exit, 4) << refused.err;
  EXPECT_TRUE(says(refused.err, "a weight is not read: tensor 'a' (param): a DTensor"))
      << refused.err;
  EXPECT_TRUE(says(refused.err, "all ranks' files are needed")) << refused.err;
}

TEST_F(Unread, WhereNothingIsReadTheExitCodeSaysSo) {
  save(kDTensor, kDTensor);
  const Outcome screen = inspect();
  EXPECT_EQ(screen.exit, 4);
  EXPECT_TRUE(says(screen.out, "not read  4 tensors (exp_avg 2, param 2): a DTensor"))
      << screen.out;
  EXPECT_TRUE(says(screen.err, "none of its 4 tensors is read")) << screen.err;
  EXPECT_EQ(convert("d", {"--to", "dcp", "--drop"}).exit, 4);
}

}  // namespace

}  // namespace ebb
