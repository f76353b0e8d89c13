// Parts of checkpoints, as --states, -k and -x choose them: what is left of groups, settings and
// counters is written and found again, or said to be untold, and no writer is blamed.
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

using Flags = std::vector<std::string>;
using Write = std::function<void(PickleWriter&)>;

class Parts : public testing::Test {
 protected:
  std::string result() const { return scratch_ / std::to_string(next_); }
  Outcome convert(const std::string& source, const std::string& format, Flags flags) {
    ++next_;
    flags.insert(flags.begin(), {source, result(), "--to", format});
    return run_program("ckpt-convert", flags);
  }
  void expect_written(const std::string& source, const std::string& format, const Flags& flags) {
    const Outcome run = convert(source, format, flags);
    EXPECT_EQ(run.exit, 0) << source << " to " << format << " " << flags.back() << ": " << run.err;
  }

  // A torch.save file: "a" and "b", numbered by an optimizer with `states` and `settings`.
  std::string saved(const Write& states, const Write& settings) {
    PickleWriter pickle;
    pickle.dict([&] {
      pickle.dict("model", [&] {
        for (const char* name : {"a", "b"}) {
          pickle.string(name);
          plain_tensor(pickle, "0", {name[0] == 'a' ? 4u : 3u});
        }
      });
      pickle.dict("optimizer", [&] {
        pickle.dict("state", [&] {
          for (std::int64_t i = 0; i < 2; ++i) {
            pickle.integer(i);
            pickle.dict([&] {
              pickle.string("exp_avg");
              plain_tensor(pickle, "0", {i == 0 ? 4u : 3u});
              states(pickle);
            });
          }
        });
        pickle.list("param_groups", [&] {
          pickle.dict([&] {
            settings(pickle);
            pickle.list("params", [&] {
              pickle.integer(0);
              pickle.integer(1);
            });
          });
        });
      });
    });
    const std::string path = scratch_ / "x.pt";
    const ByteVector bytes = test_support::archive_around(pickle.finish());
    std::ofstream(path, std::ios::binary) << formats::text_of(bytes);
    return path;
  }

  ScratchDirectory scratch_;
  int next_ = 0;
};

std::string fixture(const std::string& name) {
  return std::string(EBB_FIXTURES) + "/" + name + "/data";
}

void plain_rate(PickleWriter& pickle) {
  pickle.string("lr");
  pickle.real(0.25);
}

// Where all tensors of a number are left out, nothing tells its name any more.
TEST_F(Parts, StepsThatAreNumbersStayWithTheirNumber) {
  const std::string source =
      saved([](PickleWriter& pickle) { pickle.entry("step", 7); }, plain_rate);
  for (const char* format : {"torch", "dcp"})
    for (const Flags& part : std::vector<Flags>{{"-x", "*exp_avg", "-x", "b"}, {"-x", "*.0.*"}})
      expect_written(source, format, part);
}

// A group of AdamW loses its states, and its numbers their names: weights that told them are left
// out, too.
TEST_F(Parts, NumbersWithoutStatesStayInTheirGroup) {
  for (const char* format : {"torch", "dcp"})
    expect_written(
        fixture("torch/layout_int_steps"), format,
        {"--names", "order", "--drop", "-x", "*exp_avg*", "-x", "*step", "-x", "*.up.*"});
}

// Learning rates that are tensors: no choice of states, no cast and no renaming takes them along.
TEST_F(Parts, SettingsThatAreTensorsAreSettings) {
  const std::string source = saved([](PickleWriter&) {},
                                   [](PickleWriter& pickle) {
                                     pickle.string("lr");
                                     plain_tensor(pickle, "1", {});
                                   });
  for (const char* format : {"torch", "dcp"})
    for (const Flags& part : std::vector<Flags>{{"--states", "param,exp_avg"},
                                                {"-k", "?"},
                                                {"--dtype", "bf16"},
                                                {"--rename", "a=model.a", "--strip", "model."},
                                                {"--rename", "*=m.*", "--strip", "m."}}) {
      expect_written(source, format, part);
      const Outcome groups = run_program("ckpt-inspect", {result(), "--groups"});
      EXPECT_TRUE(says(groups.out, "lr")) << format << " " << part.back() << ": " << groups.out;
    }
  expect_written(source, "dcp", {"--states", "param"});
  EXPECT_FALSE(says(run_program("ckpt-inspect", {result(), "--groups"}).out, "lr"));
}

// Megatron records no names: whose a group is follows from the states of its parameters.
TEST_F(Parts, GroupsOfMegatronKeepTheirSettingsWhereNothingTellsWhoseTheyAre) {
  const std::vector<std::pair<std::string, Flags>> parts = {
      {"moe_muon_ep2_dp2", {"--states", "param,exp_avg"}},
      {"moe_muon_ep2_dp2", {"-x", "*1*"}},
      {"flattened015_tied_dp3", {"-k", "*2*"}}};
  for (const auto& [name, part] : parts) {
    const Outcome run = convert(fixture("megatron/" + name), "megatron", part);
    EXPECT_EQ(run.exit, 0) << name << " " << part.back() << ": " << run.err;
    EXPECT_TRUE(says(run.out + run.err, "which parameters are in it is told by states")) << run.out;
  }
  expect_written(fixture("megatron/moe_muon_ep2_dp2"), "megatron", {"-x", "*nothing*"});
  expect_written(fixture("megatron/muon_distopt_buckets_dp2"), "megatron",
                 {"--states", "exp_avg,exp_avg_sq"});
}

TEST_F(Parts, AnOptimizersNameThatItsStatesToldIsNotMissed) {
  for (const char* part : {"*2*", "*step*"})
    expect_written(fixture("megatron/fsdp_swiglu_hsdp_outer_2x2_muon"), "megatron-fsdp",
                   {"-k", part});
}

// An optimizer of two whose states are all left out is written behind the other.
TEST_F(Parts, OfOneOptimizerOfTwo) {
  for (const char* format : {"torch", "dcp"})
    for (const char* states : {"param,step", "param,exp_avg", "param,momentum_buffer"})
      expect_written(fixture("torch/muon_adamw_state"), format, {"--states", states});
}

// What Megatron keeps of its buckets' groups looks like a state dict's.
TEST_F(Parts, GroupsOfMegatronBesideItsOwnObjects) {
  for (const char* format : {"torch", "dcp"})
    for (const char* part : {"*.weight", "*fc1*"})
      expect_written(fixture("megatron/muon_distopt_buckets_dp2"), format, {"-k", part, "--drop"});
}

TEST_F(Parts, RenamedBucketsKeepTheirStatesApart) {
  expect_written(fixture("megatron/adam_dp_reshardable_dp3"), "megatron", {"--rename", "*=x.*"});
}

}  // namespace

}  // namespace ebb
