// Quantised tensors, as torchao and bitsandbytes keep them (tests/fixtures/quantized): listed as
// what they are made of, sound, passed on, and made plain. The truth is what torchao's own
// dequantize() gives, and what bitsandbytes' optimizer held.
#include <gtest/gtest.h>

#include <filesystem>
#include <set>

#include "ebb/formats/registry.h"
#include "tests/support/expected.h"
#include "tests/support/program.h"
#include "tests/tools/convert.h"

namespace ebb {
namespace {

using test_support::Outcome;
using test_support::run_program;
using test_support::says;
using test_support::ScratchDirectory;

class Quantized : public testing::Test {
 protected:
  static std::string fixture(const std::string& name) {
    return std::string(EBB_FIXTURES) + "/quantized/" + name;
  }
  static Outcome inspect(const std::string& path, std::vector<std::string> flags) {
    flags.insert(flags.begin(), path);
    return run_program("ckpt-inspect", flags);
  }
  // The converted one's path.
  std::string converted(const std::string& from, const std::string& name,
                        const std::vector<std::string>& flags) {
    const std::string to = scratch_ / name;
    std::vector<std::string> arguments = {from, to};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const Outcome done = convert(arguments);
    EXPECT_EQ(done.exit, 0) << name << ": " << done.err;
    return to;
  }
  // Against the fixture's expected.json.
  static void expect_content(const std::string& path, const std::string& name) {
    const Outcome found = inspect(path, {"--tensors", "--digest", "--json"});
    EXPECT_EQ(found.exit, 0) << path << ": " << found.err;
    EXPECT_EQ(test_support::content_differences(found.out, fixture(name) + "/expected.json",
                                                test_support::Compare::tensors),
              "")
        << path;
  }
  static void expect_same(const std::string& left, const std::string& right,
                          const std::vector<std::string>& flags = {}) {
    std::vector<std::string> all = {"--diff", right};
    all.insert(all.end(), flags.begin(), flags.end());
    const Outcome same = inspect(left, all);
    EXPECT_EQ(same.exit, 0) << left << ": " << same.out << same.err;
  }

  ScratchDirectory scratch_;
  int count_ = 0;
};

// States of AdamW8bit, by number and by name.
const std::vector<std::string> kBlocks = {"bnb_nested", "bnb_flat", "bnb_nested_dcp",
                                          "bnb_flat_dcp"};
const std::vector<std::string> kStates = {"states.pt", "ranks_w2/data", "dcp_w2/data",
                                          "checkpointing_rows_w2/data",
                                          "checkpointing_whole_w2/data"};

TEST_F(Quantized, StatesAreListedAsTheyAreStored) {
  for (const std::string& name : kStates) {
    const Outcome list = inspect(fixture(name), {"--tensors"});
    EXPECT_EQ(list.exit, 0) << list.err;
    for (const char* line :
         {"exp_avg.codes         U8       [32, 32]", "exp_avg.scale         F32      [4]",
          "exp_avg.qmap          F32      [256]", "exp_avg_sq.codes      U8       [512]",
          "max_exp_avg_sq.codes  F8_E4M3  [32, 32]"})
      EXPECT_TRUE(says(list.out, line)) << name << ", " << line << "\n" << list.out;
    const Outcome screen = inspect(fixture(name), {});
    EXPECT_TRUE(says(screen.out,
                     "1 tensor of the class OptimState8bit (torchao): F32 kept as "
                     "codes U8, scale F32, qmap F32; block_size 256"))
        << screen.out;
  }
}

TEST_F(Quantized, ProgramsAreToldOfWhatAPartIsAPart) {
  const Outcome list = inspect(fixture("states.pt"), {"--tensors", "--json", "-k", "up.weight"});
  EXPECT_TRUE(says(list.out,
                   R"("part_of": {"class": "torchao.optim.subclass_8bit.OptimState8bit", )"
                   R"("part": "codes", "dtype": "F32", "shape": [32, 32], )"
                   R"("settings": {"signed": true, "block_size": 256}})"))
      << list.out;
}

TEST_F(Quantized, AllOfThemIsSound) {
  for (const std::string& name : kStates) {
    const Outcome verified = inspect(fixture(name), {"--verify"});
    EXPECT_EQ(verified.exit, 0) << verified.out << verified.err;
    EXPECT_TRUE(says(verified.out, "sound, 20 tensors")) << verified.out;
  }
  EXPECT_EQ(inspect(fixture("weights.pt"), {"--verify"}).exit, 0);
}

TEST_F(Quantized, StatesAreMadePlainAsTheirClassesDoIt) {
  for (const std::string& name : kStates) {
    const std::string plain =
        converted(fixture(name), "plain.pt", {"--to", "torch", "-f", "--dequantize"});
    expect_same(plain, fixture("states_truth.pt"));
  }
}

TEST_F(Quantized, WeightsAreMadePlainAsTheirClassesDoIt) {
  const std::string plain =
      converted(fixture("weights.pt"), "plain.pt", {"--to", "torch", "--dequantize"});
  expect_same(plain, fixture("weights_truth.pt"));
  const std::string weights = converted(fixture("weights.pt"), "w", {"--weights", "--dequantize"});
  EXPECT_TRUE(says(inspect(weights, {}).out, "holds     10 parameters, 10 tensors"));
}

TEST_F(Quantized, ClassesComeBackFromWhereverTheyGo) {
  for (const std::string& name : kStates) {
    std::string there = fixture(name);
    for (const char* format :
         {"dcp", "safetensors", "torch", "torch-checkpointing", "ebb", "dcp", "torch"})
      there = converted(there, std::string(format) + std::to_string(++count_), {"--to", format});
    const std::string plain =
        converted(there, "plain" + std::to_string(count_), {"--to", "torch", "--dequantize"});
    expect_same(plain, fixture("states_truth.pt"));
  }
}

// But for those whose classes keep objects, of which a pickle says no more than the name: MXFP4's
// dtype, and how Int8Tensor quantises activations.
TEST_F(Quantized, WeightsGoBetweenTorchAndDcp) {
  const std::vector<std::string> without = {"-x", "mxfp4.*", "-x", "int8_dynamic.*"};
  const auto to = [&](std::string format) {
    std::vector<std::string> flags = without;
    flags.insert(flags.end(), {"--to", std::move(format)});
    return flags;
  };
  const std::string dcp = converted(fixture("weights.pt"), "d", to("dcp"));
  const std::string torch = converted(dcp, "t.pt", {"--to", "torch"});
  EXPECT_TRUE(says(inspect(torch, {}).out, "1 tensor of the class NVFP4Tensor (torchao)"));
  const std::string plain = converted(torch, "plain.pt", {"--to", "torch", "--dequantize"});
  expect_same(plain, converted(fixture("weights_truth.pt"), "truth.pt", to("torch")));
}

TEST_F(Quantized, WhatIsNotKeptIsNotMadeUpOnTheWayBack) {
  const std::string parts = converted(fixture("weights.pt"), "s", {"--to", "safetensors"});
  for (const std::string name : {"mxfp4.weight", "int8_dynamic.weight"}) {
    const Outcome back = convert({parts, scratch_ / "b.pt", "--to", "torch", "-k", name + ".*"});
    EXPECT_EQ(back.exit, 4) << name;
    EXPECT_TRUE(says(back.err, "is an object of which only the class is known")) << back.err;
  }
  const std::string plain = converted(parts, "plain.pt", {"--to", "torch", "--dequantize"});
  expect_same(plain, fixture("weights_truth.pt"));
}

TEST_F(Quantized, StatesGoIntoTheFoldersOfTrainers) {
  for (const std::string format : {"transformers", "accelerate-fsdp"}) {
    const std::string folder = converted(fixture("dcp_w2/data"), format, {"--to", format});
    EXPECT_TRUE(says(inspect(folder, {}).out, "1 tensor of the class OptimState8bit (torchao)"));
    const std::string plain = converted(folder, format + ".pt", {"--to", "torch", "--dequantize"});
    const std::string truth =
        converted(fixture("states_truth.pt"), format + "_truth", {"--to", format});
    expect_same(plain, converted(truth, format + "_truth.pt", {"--to", "torch"}));
  }
}

TEST_F(Quantized, WholesHaveTheNamesThatPeopleSay) {
  const std::string renamed =
      converted(fixture("dcp_w2/data"), "r", {"--to", "dcp", "--rename", "up.weight=a.b"});
  EXPECT_TRUE(says(inspect(renamed, {"--tensors"}).out, "a.b          exp_avg.codes"))
      << inspect(renamed, {"--tensors"}).out;
  const std::string chosen =
      converted(fixture("states.pt"), "c.pt", {"--to", "torch", "--states", "param,exp_avg"});
  EXPECT_TRUE(says(inspect(chosen, {}).out, "exp_avg.codes 1, exp_avg.qmap 1, exp_avg.scale 1"));
  const Outcome torn = convert({fixture("states.pt"), scratch_ / "n.pt", "--to", "torch",
                                "--states", "param,exp_avg.codes"});
  EXPECT_EQ(torn.exit, 4);
  EXPECT_TRUE(says(torn.err, "1 of its 3 parts are left")) << torn.err;
  const std::string rest = converted(
      fixture("weights.pt"), "x.pt",
      {"--to", "torch", "-x", "nf4.weight", "-x", "mxfp4.weight", "-x", "int8_dynamic.weight"});
  EXPECT_FALSE(says(inspect(rest, {"--tensors"}).out, "nf4"));
}

TEST_F(Quantized, WhatAFormatCannotHoldIsRefusedByName) {
  for (const char* format : {"deepspeed", "deepspeed-universal", "megatron", "megatron-fsdp"}) {
    const Outcome refused = convert({fixture("states.pt"), scratch_ / "r", "--to", format});
    EXPECT_EQ(refused.exit, 4) << format;
    EXPECT_TRUE(says(refused.err, "tensor 'up.weight' (exp_avg) is of the class OptimState8bit"))
        << refused.err;
    EXPECT_TRUE(says(refused.err, "--dequantize")) << refused.err;
    converted(fixture("states.pt"), std::string(format) + "_plain",
              {"--to", format, "--dequantize"});
  }
  const Outcome fp4 =
      convert({fixture("weights.pt"), scratch_ / "r.pt", "--to", "torch", "-k", "mxfp4.*"});
  EXPECT_EQ(fp4.exit, 4);
  EXPECT_TRUE(
      says(fp4.err, "'mxfp4.weight' (param) is of the class MXTensor (torchao): its elem_dtype"))
      << fp4.err;
  const Outcome weights = convert({fixture("weights.pt"), scratch_ / "w", "--weights"});
  EXPECT_EQ(weights.exit, 4);
  EXPECT_TRUE(says(weights.err, "is of the class")) << weights.err;
}

TEST_F(Quantized, StatesInBlocksHaveWhatBitsandbytesHeld) {
  for (const std::string& name : kBlocks) {
    expect_content(fixture(name) + "/data", name);
    EXPECT_TRUE(says(inspect(fixture(name) + "/data", {"--verify"}).out, "sound")) << name;
  }
}

// QLoRA: the base in four bits is all of it in DeepSpeed's model file, the adapters have masters.
TEST_F(Quantized, ABaseInFourBitsIsWhatDeepSpeedHeld) {
  const std::string source = fixture("qlora_z2_w2") + "/data";
  expect_content(source, "qlora_z2_w2");
  expect_same(source, converted(source, "z", {"--to", "deepspeed", "-w", "3"}));
  for (const char* format : {"deepspeed-universal", "dcp"})
    expect_same(source, converted(source, format, {"--to", format}));
}

// Every kind to every target: it arrives as it was, or is refused by one error that names it.
struct Kind {
  std::string source;
  std::vector<std::string> flags;
  std::string named;
  std::set<std::string> refused;  // by these
  std::string truth;              // of what is made plain; "": it is compared as it is
};
std::vector<Kind> all_kinds() {
  const std::set<std::string> jobs = {"deepspeed", "deepspeed-universal", "megatron",
                                      "megatron-fsdp"};
  std::set<std::string> others = jobs, fsdp = jobs;
  others.insert({"dcp", "torch", "torch-checkpointing", "transformers", "accelerate-fsdp"});
  fsdp.insert("accelerate-fsdp");
  std::vector<Kind> kinds = {{"weights.pt", {}, "is of the class", others, "weights_truth.pt"}};
  for (const std::string& name : kStates)
    kinds.push_back({name, {}, "is of the class OptimState8bit", jobs, "states_truth.pt"});
  for (const std::string& name : kBlocks)
    kinds.push_back({name + "/data",
                     name.ends_with("dcp") ? std::vector<std::string>{}
                                           : std::vector<std::string>{"--names", "order"},
                     "is a state in 8 bits of bitsandbytes", fsdp, ""});
  return kinds;
}

TEST_F(Quantized, EveryKindArrivesOrIsRefusedByName) {
  const bool reads_hdf5 = std::filesystem::exists(std::string(EBB_BIN) + "/ebb-hdf5-reader");
  for (const Kind& kind : all_kinds())
    for (const formats::Format* format : formats::written_formats()) {
      const std::string to(format->name());
      if (to == "hdf5" && !reads_hdf5) continue;
      const std::string label = kind.source + " to " + to;
      const std::string out = scratch_ / std::to_string(++count_);
      std::vector<std::string> arguments = {fixture(kind.source), out, "--to", to};
      arguments.insert(arguments.end(), kind.flags.begin(), kind.flags.end());
      const Outcome run = convert(arguments);
      if (kind.refused.contains(to)) {
        EXPECT_EQ(run.exit, 4) << label << ": " << run.out;
        EXPECT_TRUE(says(run.err, kind.named) || says(run.err, "has no optimizer"))
            << label << ": " << run.err;
        EXPECT_TRUE(says(run.err, "hint: ")) << label << ": " << run.err;
        EXPECT_EQ(run.err.find("error:"), run.err.rfind("error:")) << label << ": " << run.err;
        continue;
      }
      ASSERT_EQ(run.exit, 0) << label << ": " << run.err;
      EXPECT_EQ(inspect(out, {"--verify"}).exit, 0) << label;
      if (kind.truth.empty())
        expect_same(out, fixture(kind.source));
      else
        expect_same(converted(out, std::to_string(++count_), {"--to", "torch", "--dequantize"}),
                    fixture(kind.truth),
                    {"--state", "param", "--state", "exp_avg", "--state", "exp_avg_sq", "--state",
                     "max_exp_avg_sq"});
    }
}

TEST_F(Quantized, PlainWeightsBesideThemAreWeights) {
  for (const std::string& name : kStates) {
    const std::string weights = converted(fixture(name), "w", {"--weights", "-f"});
    expect_same(weights, fixture("states_truth.pt"), {"--state", "param"});
  }
  const Outcome none =
      convert({fixture("states_truth.pt"), scratch_ / "n.pt", "--to", "torch", "--dequantize"});
  EXPECT_EQ(none.exit, 2);
  EXPECT_TRUE(says(none.err, "no tensor to dequantize")) << none.err;
}

TEST_F(Quantized, PiecesThatAreNotAlikeHideNothingElse) {
  const Outcome verified = inspect(fixture("mixed_w2/pieces"), {"--verify"});
  EXPECT_EQ(verified.exit, 4) << verified.err;
  EXPECT_TRUE(says(verified.out, "sound, 1 tensor")) << verified.out;
  EXPECT_TRUE(says(verified.out,
                   "1 tensor not read: a tensor made of parts, in pieces of which some are plain"))
      << verified.out;
}

}  // namespace
}  // namespace ebb
