// What a target cannot hold is refused or left out by name before anything is written: never as the
// fault of a disk, of the memory or of the writer.
#include <gtest/gtest.h>

#include <fstream>
#include <functional>
#include <iterator>
#include <sstream>

#include "tests/support/archives.h"
#include "tests/support/pickled_tensors.h"
#include "tests/support/program.h"

namespace ebb {

namespace {

using formats::PickleWriter;
using test_support::Outcome;
using test_support::plain_tensor;
using test_support::run_program;
using test_support::ScratchDirectory;

using Write = std::function<void(PickleWriter&)>;

class TargetRules : public testing::Test {
 protected:
  // Parameters "a" and "b" of one group; `more` writes what else their states hold. Groups: the
  // parameters of each.
  void save(const Write& more, const std::vector<std::vector<std::string>>& groups = {{"a", "b"}}) {
    PickleWriter pickle;
    const auto tensor = [&](std::string_view key) {
      pickle.string(key);
      plain_tensor(pickle, "0", {4, 3});
    };
    const auto group = [&](const std::vector<std::string>& params, double lr) {
      pickle.dict([&] {
        pickle.string("lr");
        pickle.real(lr);
        pickle.list("params", [&] {
          for (const std::string& name : params) pickle.string(name);
        });
      });
    };
    pickle.dict([&] {
      pickle.dict("model", [&] {
        for (const char* name : {"a", "b"}) tensor(name);
      });
      pickle.dict("optimizer", [&] {
        pickle.dict("state", [&] {
          for (const char* name : {"a", "b"})
            pickle.dict(name, [&] {
              tensor("exp_avg");
              more(pickle);
            });
        });
        pickle.list("param_groups", [&] {
          double lr = 0.5;
          for (const auto& params : groups) group(params, lr /= 2);
        });
      });
    });
    write(test_support::archive_around(pickle.finish()));
  }
  void write(const ByteVector& bytes) {
    std::ofstream(path(), std::ios::binary) << formats::text_of(bytes);
  }
  std::string path() const { return scratch_ / "x.pt"; }

  Outcome convert(const std::string& format, std::vector<std::string> flags = {}) {
    flags.insert(flags.begin(), {path(), scratch_ / std::to_string(next_++), "--to", format});
    return run_program("ckpt-convert", flags);
  }
  // Every target takes it or refuses by name; with --drop every one takes the rest.
  void expect_rules(std::string_view named) {
    for (const char* format : {"dcp", "torch", "safetensors", "megatron", "megatron-fsdp",
                               "deepspeed", "deepspeed-universal", "ebb"}) {
      const Outcome run = convert(format);
      EXPECT_TRUE(run.exit == 0 || run.exit == 4) << format << ": " << run.err;
      EXPECT_EQ(run.err.find("at fault"), std::string::npos) << format << ": " << run.err;
      EXPECT_EQ(run.err.find("defect"), std::string::npos) << format << ": " << run.err;
      if (run.exit == 0) continue;
      EXPECT_NE(run.err.find(named), std::string::npos) << format << ": " << run.err;
      const Outcome rest = convert(format, {"--drop"});
      EXPECT_EQ(rest.exit, 0) << format << ": " << rest.err;
    }
  }

  ScratchDirectory scratch_;
  int next_ = 0;
};

TEST_F(TargetRules, StatesWithADotInTheirName) {
  for (const char* state : {"GG.0", "0.step", "__bnb_optimizer_quant_state__.state1"}) {
    save([&](PickleWriter& pickle) {
      pickle.string(state);
      plain_tensor(pickle, "0", {4, 3});
    });
    expect_rules(state);
  }
}

TEST_F(TargetRules, StatesInListsAndDicts) {
  save([](PickleWriter& pickle) {
    pickle.list("GG", [&] {
      plain_tensor(pickle, "0", {4, 3});
      plain_tensor(pickle, "0", {4, 3});
    });
    pickle.dict("inner", [&] {
      pickle.string("state1");
      plain_tensor(pickle, "0", {4, 3});
    });
  });
  expect_rules("GG.0");
}

TEST_F(TargetRules, ValuesOfAParameterThatAreNoTensors) {
  const std::vector<Write> values = {
      [](PickleWriter& pickle) { pickle.integer(7); },
      [](PickleWriter& pickle) { pickle.real(0.5); },
      [](PickleWriter& pickle) { pickle.string("rows"); },
      [](PickleWriter& pickle) { pickle.none(); },
      [](PickleWriter& pickle) { pickle.boolean(1); },
      [](PickleWriter& pickle) {
        pickle.tuple([&] {
          pickle.integer(1);
          pickle.string("x");
        });
      },
      [](PickleWriter& pickle) {
        pickle.list([&] {
          pickle.list([&] {
            pickle.integer(1);
            pickle.integer(2);
          });
        });
      },
      [](PickleWriter& pickle) { pickle.dict([&] { pickle.entry("deep", 3); }); },
      [](PickleWriter& pickle) { pickle.empty_dict(); },
      [](PickleWriter& pickle) { pickle.empty_list(); }};
  for (const Write& write : values) {
    save([&](PickleWriter& pickle) {
      pickle.string("mode");
      write(pickle);
    });
    expect_rules("mode");
  }
}

TEST_F(TargetRules, AGroupWithoutParametersIsLeftOutWithANote) {
  for (const auto& groups : std::vector<std::vector<std::vector<std::string>>>{
           {{}, {"a", "b"}}, {{"a"}, {}, {"b"}}, {{"a", "b"}, {}}, {{}, {"a"}, {}, {"b"}, {}}}) {
    save([](PickleWriter&) {}, groups);
    expect_rules("group");
    for (const char* format : {"deepspeed", "deepspeed-universal", "megatron-fsdp"}) {
      const Outcome run = convert(format);
      EXPECT_EQ(run.exit, 0) << format << ": " << run.err;
      EXPECT_NE((run.out + run.err).find("has no parameters and is left out"), std::string::npos)
          << format << ": " << run.out << run.err;
    }
  }
  const Outcome screen = run_program("ckpt-inspect", {path()});
  EXPECT_NE(screen.out.find("no parameters: lr="), std::string::npos) << screen.out;
}

TEST_F(TargetRules, ATieIsLeftOutWithItsParameter) {
  const std::string source = std::string(EBB_FIXTURES) + "/deepspeed/z3_muon_bf16_w4/data";
  for (const char* format :
       {"deepspeed", "deepspeed-universal", "dcp", "torch", "megatron", "safetensors"}) {
    const Outcome run = run_program(
        "ckpt-convert", {source, scratch_ / format, "--to", format, "-k", "blocks.0.attn.*"});
    EXPECT_EQ(run.exit, 0) << format << ": " << run.err;
  }
  const Outcome told = run_program("ckpt-convert", {source, scratch_ / "again", "--to", "deepspeed",
                                                    "-k", "blocks.0.attn.*", "-n"});
  EXPECT_NE((told.out + told.err).find("1 tied name is left out"), std::string::npos)
      << told.out << told.err;
}

// Parameters of a whole group are left out: the others keep their own settings.
TEST_F(TargetRules, ASubsetWithoutTheFirstGroup) {
  save([](PickleWriter&) {}, {{"a"}, {"b"}});
  for (const char* format : {"dcp", "torch", "safetensors", "megatron", "megatron-fsdp",
                             "deepspeed", "deepspeed-universal", "ebb"}) {
    const Outcome run = convert(format, {"-k", "b"});
    EXPECT_EQ(run.exit, 0) << format << ": " << run.err;
  }
}

// An optimizer that numbers its parameters, of which states are left out: what the numbers are does
// not follow any more from what is written, and they are the same numbers all the same.
TEST_F(TargetRules, NumbersStayNumbersInAPart) {
  PickleWriter pickle;
  const std::vector<std::pair<std::string, Shape>> params = {
      {"a", {4, 3}}, {"b", {3}}, {"c", {2, 3}}, {"d", {5}}};
  pickle.dict([&] {
    pickle.dict("model", [&] {
      for (const auto& [name, shape] : params) {
        pickle.string(name);
        plain_tensor(pickle, "0", shape);
      }
    });
    pickle.dict("optimizer", [&] {
      pickle.dict("state", [&] {
        for (std::size_t i = 0; i < params.size(); ++i) {
          pickle.integer(static_cast<std::int64_t>(i));
          pickle.dict([&] {
            pickle.string("exp_avg");
            plain_tensor(pickle, "0", params[i].second);
            pickle.string("step");
            plain_tensor(pickle, "1", {});
          });
        }
      });
      pickle.list("param_groups", [&] {
        pickle.dict([&] {
          pickle.string("lr");
          pickle.real(0.25);
          pickle.list("params", [&] {
            for (std::size_t i = 0; i < params.size(); ++i)
              pickle.integer(static_cast<std::int64_t>(i));
          });
        });
      });
    });
  });
  write(test_support::archive_around(pickle.finish()));
  for (const char* format : {"dcp", "torch"})
    for (const auto& part :
         std::vector<std::vector<std::string>>{{"-x", "*.1.*"},
                                               {"-x", "a"},
                                               {"-x", "optimizer.state.0.exp_avg"},
                                               {"--states", "param,step"},
                                               {"-x", "*.exp_avg", "-x", "c"}}) {
      const Outcome run = convert(format, part);
      EXPECT_EQ(run.exit, 0) << format << " " << part[1] << ": " << run.err;
    }
}

// The words that targets' files have for things of their own.
TEST_F(TargetRules, ValuesUnderNamesThatAreTheTargetsOwn) {
  std::istringstream words(
      "module buffer_names param_shapes shared_params ds_version global_steps dp_world_size "
      "mp_world_size num_experts ds_autoep_layers global_samples skipped_steps lr_scheduler "
      "data_sampler random_ltd ds_config loss_scaler dynamic_loss_scale overflow clip_grad "
      "zero_stage tied tag latest iteration checkpoint_version content_metadata args rng_state "
      "folder ebb metadata state_dict_parts param_steps groups values names format producer "
      "state_step zero_optimizer loss_scale client_state grad_scaler version step");
  const std::vector<std::string> names{std::istream_iterator<std::string>(words), {}};
  const std::vector<Write> values = {
      [](PickleWriter& pickle) { pickle.string("mine"); },
      [](PickleWriter& pickle) { pickle.integer(3); },
      [](PickleWriter& pickle) { pickle.boolean(1); }, [](PickleWriter& pickle) { pickle.none(); },
      [](PickleWriter& pickle) { pickle.dict([&] { pickle.entry("a", "b"); }); }};
  for (const Write& value : values) {
    PickleWriter pickle;
    pickle.dict([&] {
      pickle.dict("model", [&] {
        pickle.string("w");
        plain_tensor(pickle, "0", {4, 3});
      });
      for (const std::string& name : names) {
        pickle.string(name);
        value(pickle);
      }
    });
    write(test_support::archive_around(pickle.finish()));
    expect_rules("value \"");
  }
}

// A pickle names what no value shows.
TEST_F(TargetRules, SeveralNamesThatAnObjectHides) {
  PickleWriter pickle;
  pickle.dict([&] {
    pickle.string("w");
    plain_tensor(pickle, "0", {4, 3});
    pickle.string("args");
    pickle.call("acme.args", "Arguments", [&] {
      pickle.global("acme.first", "Hidden");
      pickle.global("acme.second", "Hidden");
    });
  });
  write(test_support::archive_around(pickle.finish()));
  for (const char* format : {"dcp", "torch", "safetensors", "ebb"}) {
    EXPECT_EQ(convert(format).exit, 3) << format;
    const Outcome run = convert(format, {"--drop"});
    EXPECT_EQ(run.exit, 0) << format << ": " << run.err;
    for (const char* name : {"acme.args.Arguments", "acme.first.Hidden", "acme.second.Hidden"})
      EXPECT_NE(run.out.find(name), std::string::npos) << format << ": " << run.out;
  }
}

// A list that has no tensor any more is a value, with what else was in it.
TEST_F(TargetRules, AListWithoutItsTensorsIsAValue) {
  PickleWriter pickle;
  pickle.dict([&] {
    pickle.string("w");
    plain_tensor(pickle, "0", {4, 3});
    pickle.list("mixed", [&] {
      pickle.list([&] {
        plain_tensor(pickle, "0", {3});
        pickle.integer(5);
        pickle.list([&] { pickle.integer(6); });
      });
      plain_tensor(pickle, "0", {2});
    });
  });
  write(test_support::archive_around(pickle.finish()));
  for (const char* format : {"dcp", "torch"})
    for (const char* part : {"mixed.0.0", "mixed.*", "mixed.1"}) {
      const Outcome run = convert(format, {"-x", part});
      EXPECT_EQ(run.exit, 0) << format << " " << part << ": " << run.err;
    }
}

// A learning rate that a compiled step can change, betas likewise: numbers elsewhere, tensors again
// in the state dict that comes back.
TEST_F(TargetRules, SettingsThatAreTensorsComeBackAsTensors) {
  for (const bool flattened : {false, true}) {
    PickleWriter pickle;
    const auto tensor = [&](std::string_view key, const Shape& shape) {
      pickle.string(key);
      plain_tensor(pickle, "0", shape);
    };
    const auto settings = [&](const std::string& before) {
      tensor(before + "lr", {});
      pickle.string(before + "betas");
      pickle.tuple([&] {
        plain_tensor(pickle, "0", {});
        plain_tensor(pickle, "0", {});
      });
    };
    pickle.dict([&] {
      pickle.dict("model", [&] { tensor("a", {4, 3}); });
      pickle.dict("optimizer", [&] {
        if (flattened) {
          tensor("state.a.exp_avg", {4, 3});
          return settings("param_groups.a.");
        }
        pickle.dict("state", [&] { pickle.dict("a", [&] { tensor("exp_avg", {4, 3}); }); });
        pickle.list("param_groups", [&] {
          pickle.dict([&] {
            settings("");
            pickle.list("params", [&] { pickle.string("a"); });
          });
        });
      });
    });
    write(test_support::archive_around(pickle.finish()));
    for (const char* format :
         {"dcp", "safetensors", "megatron", "megatron-fsdp", "deepspeed-universal", "ebb"}) {
      const std::string there = scratch_ / std::to_string(next_);
      const Outcome run = convert(format);
      ASSERT_EQ(run.exit, 0) << format << ": " << run.err;
      const std::string back = scratch_ / std::to_string(next_++);
      ASSERT_EQ(run_program("ckpt-convert", {there, back, "--to", "torch"}).exit, 0) << format;
      const Outcome same = run_program("ckpt-inspect", {"--diff", path(), back});
      EXPECT_EQ(same.err, "");
      EXPECT_EQ(same.out.find("param_groups"), std::string::npos) << format << ": " << same.out;
      EXPECT_EQ(same.out.find("setting lr"), std::string::npos) << format << ": " << same.out;
    }
  }
}

TEST_F(TargetRules, AStateOfAnotherShapeIsSaidToHaveIt) {
  save([first = true](PickleWriter& pickle) mutable {
    pickle.string("GG");
    plain_tensor(pickle, "0", first ? Shape{4, 3} : Shape{4, 4});
    first = false;
  });
  const Outcome run = convert("deepspeed");
  EXPECT_EQ(run.exit, 4);
  EXPECT_NE(run.err.find("\"b\" has a GG of shape [4, 4], and is [4, 3] itself"), std::string::npos)
      << run.err;
}

}  // namespace

}  // namespace ebb
