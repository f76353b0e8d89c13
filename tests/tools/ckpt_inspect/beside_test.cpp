// A folder is looked at whole: what lies beside what is read is named, and answers take it into
// account. Folders are laid out as transformers, accelerate, Lightning and others leave them.
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/cost.h"
#include "tests/tools/ckpt_inspect/inspect.h"

namespace ebb {
namespace {

namespace fs = std::filesystem;
using inspect_test::bytes_of;
using inspect_test::copy;
using inspect_test::inspect;
using inspect_test::says;
using inspect_test::write;
using inspect_test::write_safetensors;
using test_support::Outcome;
using test_support::run_program;
using test_support::ScratchDirectory;

// A folder with one sound model.safetensors and files of these names that only their names tell.
void lay_out(const std::string& folder, const std::vector<std::string>& beside) {
  fs::create_directories(folder);
  write_safetensors(folder + "/model.safetensors", "F32", "[2]", bytes_of<float>({1, 2}),
                    "a.weight");
  for (const std::string& name : beside) write(folder + "/" + name);
}

// As transformers' Trainer has them, but for the states: those of optimizer.pt are read with the
// weights (tests/formats/folders).
const std::vector<std::string> kTrainer = {"muon_optim.pt",     "scheduler.pt", "rng_state.pth",
                                           "training_args.bin", "config.json",  "tokenizer.json",
                                           "trainer_state.json"};

TEST(InspectBeside, WhatATrainersFolderHoldsBesideTheWeightsIsNamedInFewLines) {
  const ScratchDirectory scratch;
  lay_out(scratch / "checkpoint-2", kTrainer);
  const Outcome run = inspect({scratch / "checkpoint-2"});
  EXPECT_EQ(run.exit, 0) << run.err;
  EXPECT_TRUE(says(run.out, "  beside    muon_optim.pt: an optimizer's states\n")) << run.out;
  EXPECT_TRUE(says(run.out,
                   "            rng_state.pth, scheduler.pt, trainer_state.json, "
                   "training_args.bin: what the job keeps of its own\n"
                   "            config.json, tokenizer.json: nothing trained\n"))
      << run.out;
  const Outcome json = inspect({scratch / "checkpoint-2", "--json"});
  EXPECT_TRUE(says(json.out,
                   "{\"path\": \"muon_optim.pt\", \"count\": 1, \"role\": \"states\", "
                   "\"what\": \"an optimizer's states\", \"holds_states\": true}"))
      << json.out;
}

TEST(InspectBeside, WhoResumesWeightsAndStatesInTwoFilesIsSaid) {
  const ScratchDirectory scratch;
  for (const auto& [folder, loader] :
       {std::pair("trainer", "transformers' Trainer"),
        std::pair("accelerate", "accelerate's load_state"),
        std::pair("fsdp_sharded", "a job with FSDP through accelerate"),
        std::pair("lightning", "Lightning's FSDPStrategy")}) {
    const Outcome run =
        inspect({"folders/" + std::string(folder) + "/data", "--explain-resume", "2"});
    EXPECT_EQ(run.exit, 0) << run.out << run.err;
    EXPECT_TRUE(says(run.out, "yes, " + std::string(loader) + " resumes it")) << run.out;
  }
  // States of which nothing tells who loads them with the weights: no "starts a new optimizer".
  lay_out(scratch / "other", {"muon_optim_state.pt"});
  const Outcome other = inspect({scratch / "other", "--explain-resume", "1"});
  EXPECT_EQ(other.exit, 1);
  EXPECT_TRUE(says(other.out, "the optimizer's states lie beside, in muon_optim_state.pt"))
      << other.out;
  lay_out(scratch / "none", {"config.json"});
  EXPECT_TRUE(says(inspect({scratch / "none", "--explain-resume", "1"}).out, "weights only"));
}

TEST(InspectBeside, ANewOptimizerBesideStatesIsStartedOnlyWhenAskedFor) {
  const ScratchDirectory scratch;
  lay_out(scratch / "trainer", kTrainer);
  lay_out(scratch / "out", {});
  copy("dcp/fsdp2_w1/data", scratch / "out/checkpoint-500");
  for (const char* source : {"trainer", "out"}) {
    for (const char* to : {"dcp", "ebb", "megatron"}) {
      const std::string made = scratch / (std::string(source) + "-" + to);
      const Outcome refused = run_program("ckpt-convert", {scratch / source, made, "--to", to});
      EXPECT_EQ(refused.exit, 4) << source << " " << to << refused.out << refused.err;
      EXPECT_TRUE(says(refused.err, "--new-optimizer")) << refused.err;
      EXPECT_FALSE(fs::exists(made));
      const Outcome done =
          run_program("ckpt-convert", {scratch / source, made, "--to", to, "--new-optimizer"});
      EXPECT_EQ(done.exit, 0) << source << " " << to << done.err;
      EXPECT_TRUE(says(done.out, "  not read: ")) << done.out;
    }
    // A file of tensors and the model alone start nothing.
    for (const std::vector<std::string>& how : std::vector<std::vector<std::string>>{
             {"--to", "safetensors"}, {"--to", "torch"}, {"--weights"}}) {
      std::vector<std::string> words = {scratch / source, scratch / (source + how.back())};
      words.insert(words.end(), how.begin(), how.end());
      EXPECT_EQ(run_program("ckpt-convert", words).exit, 0) << source << how.back();
    }
  }
}

// The states of a folder that is read as one are carried, or what has them is refused by name.
TEST(InspectBeside, StatesOfOneSaveAreCarriedOrRefusedByName) {
  const ScratchDirectory scratch;
  const std::string folders = std::string(EBB_FIXTURES) + "/folders/";
  for (const char* to : {"deepspeed", "deepspeed-universal", "megatron", "ebb"}) {
    const std::string made = scratch / to;
    const Outcome refused =
        run_program("ckpt-convert", {folders + "trainer/data", made, "--to", to});
    EXPECT_EQ(refused.exit, 4) << to << refused.out;
    EXPECT_TRUE(says(refused.err, "'optimizer.0' (exp_avg): nothing records which parameter"))
        << refused.err;
    EXPECT_FALSE(fs::exists(made));
    const Outcome done = run_program("ckpt-convert", {folders + "trainer/data", made, "--to", to,
                                                      "--names", folders + "trainer/names"});
    EXPECT_EQ(done.exit, 0) << to << done.err;
    EXPECT_FALSE(says(done.out, "rng_state.pth")) << "all of it is there: " << done.out;
    const Outcome screen = inspect({made});
    EXPECT_TRUE(says(screen.out, "exp_avg 6, exp_avg_sq 6")) << screen.out;
  }
  for (const char* source : {"accelerate", "fsdp_sharded", "fsdp_full", "lightning"}) {
    const std::string made = scratch / source;
    const Outcome run =
        run_program("ckpt-convert", {folders + source + "/data", made, "--to", "deepspeed"});
    EXPECT_EQ(run.exit, 0) << source << run.err;
    EXPECT_TRUE(says(inspect({made}).out, "exp_avg_sq")) << source;
    const Outcome weights =
        run_program("ckpt-convert", {folders + source + "/data", made + "-w", "--weights"});
    EXPECT_EQ(weights.exit, 0) << source << weights.err;
  }
}

TEST(InspectBeside, FoldersAreReadAndNotWritten) {
  const ScratchDirectory scratch;
  const Outcome run =
      run_program("ckpt-convert", {std::string(EBB_FIXTURES) + "/folders/accelerate/data",
                                   scratch / "t", "--to", "accelerate"});
  EXPECT_EQ(run.exit, 2) << run.err;
  EXPECT_TRUE(says(run.err, "ckpt-convert reads accelerate, and does not write it")) << run.err;
}

// Named themselves, weights are no less half of a save.
TEST(InspectBeside, StatesBesideWeightsThatAreNamedThemselvesCountToo) {
  const ScratchDirectory scratch;
  lay_out(scratch / "trainer", kTrainer);
  lay_out(scratch / "fsdp/pytorch_model_fsdp_0", {});
  lay_out(scratch / "automodel/model", {});
  copy("dcp/fsdp2_w1/data", scratch / "fsdp/optimizer_0");
  copy("dcp/fsdp2_w1/data", scratch / "automodel/optim");
  lay_out(scratch / "run/step-1", {});
  copy("dcp/fsdp2_w1/data", scratch / "run/step-2");
  const std::pair<const char*, const char*> cases[] = {
      {"trainer/model.safetensors", "beside them in muon_optim.pt"},
      {"fsdp/pytorch_model_fsdp_0", "beside them in ../optimizer_0/"},
      {"automodel/model", "beside them in ../optim/"},
      {"automodel/model/", "beside them in ../optim/"}};
  for (const auto& [source, where] : cases) {
    const Outcome run =
        run_program("ckpt-convert", {scratch / source, scratch / "d", "--to", "dcp"});
    EXPECT_EQ(run.exit, 4) << source << run.out;
    EXPECT_TRUE(says(run.err, where)) << run.err;
  }
  EXPECT_EQ(
      run_program("ckpt-convert", {scratch / "run/step-1", scratch / "d", "--to", "dcp"}).exit, 0)
      << "another save of the run is not the other half of this one";
}

// Weights without states beside them, and a checkpoint that has its own, start as before.
TEST(InspectBeside, WithoutStatesBesideNobodyIsAsked) {
  const ScratchDirectory scratch;
  lay_out(scratch / "weights", {"config.json", "training_args.bin"});
  EXPECT_EQ(run_program("ckpt-convert", {scratch / "weights", scratch / "w", "--to", "dcp"}).exit,
            0);
  copy("dcp/fsdp2_w1/data", scratch / "whole");
  write(scratch / "whole/optimizer.pt");
  EXPECT_EQ(run_program("ckpt-convert", {scratch / "whole", scratch / "d", "--to", "dcp"}).exit, 0);
}

TEST(InspectBeside, AShardThatNobodyWouldMissIsSpokenOfBehindAConversion) {
  const ScratchDirectory scratch;
  const Outcome run = run_program(
      "ckpt-convert", {"safetensors/dcp_hf_sharded_w3/data", scratch / "w", "--weights"});
  EXPECT_EQ(run.exit, 0) << run.err;
  EXPECT_TRUE(says(run.out, "a missing last shard cannot be noticed")) << run.out;
}

TEST(InspectBeside, FilesOfUnknownNameAreToldByTheirFirstBytes) {
  const ScratchDirectory scratch;
  lay_out(scratch / "c", {});
  fs::copy(fs::path(EBB_FIXTURES) / "torch/muon_adamw_state/data", scratch / "found",
           fs::copy_options::recursive);
  for (const auto& file : fs::directory_iterator(scratch / "found"))
    fs::copy_file(file.path(), scratch / "c/rest.pt");
  write(scratch / "c/other.pt", "PK");
  write(scratch / "c/who_knows");
  const Outcome run = inspect({scratch / "c"});
  EXPECT_TRUE(says(run.out, "rest.pt: a torch.save file with an optimizer's states")) << run.out;
  EXPECT_TRUE(says(run.out, "other.pt: a torch.save file\n")) << run.out;
  EXPECT_TRUE(says(run.out, "who_knows: not known\n")) << run.out;
}

TEST(InspectBeside, FoldersBesideAreNamedAsWhatTheyAre) {
  const ScratchDirectory scratch;
  lay_out(scratch / "c", {"runs/events.out.tfevents.1", "train/rank0.pt", "train/rank1.pt"});
  copy("dcp/fsdp2_w1/data", scratch / "c/optimizer_0");
  lay_out(scratch / "c/consolidated", {});
  const Outcome run = inspect({scratch / "c"});
  EXPECT_TRUE(
      says(run.out, "optimizer_0/: a dcp checkpoint of its own, with an optimizer's states\n"))
      << run.out;
  EXPECT_TRUE(says(run.out, "consolidated/: a safetensors checkpoint of its own\n")) << run.out;
  EXPECT_TRUE(says(run.out, "train/: what the job keeps of its own\n")) << run.out;
  EXPECT_TRUE(says(run.out, "runs/: nothing trained\n")) << run.out;
}

// A rank's own state lies beside .metadata, another tag beside the one that `latest` names.
TEST(InspectBeside, NothingBesideAnyFormatGoesUnnamed) {
  const ScratchDirectory scratch;
  copy("dcp/fsdp2_w1/data", scratch / "x.ckpt");
  write(scratch / "x.ckpt/extra_state.pt");
  write(scratch / "x.ckpt/__9_0.distcp");
  const Outcome lightning = inspect({scratch / "x.ckpt"});
  EXPECT_TRUE(says(lightning.out, "extra_state.pt: what the job keeps")) << lightning.out;
  EXPECT_TRUE(says(lightning.out, "__9_0.distcp is referred to by nothing")) << lightning.out;
  EXPECT_TRUE(says(inspect({scratch / "x.ckpt", "--explain-resume", "1"}).out, "extra_state.pt"));

  copy("deepspeed/z2_adam_fp32_w3/data", scratch / "ds");
  write(scratch / "ds/global_step1/mp_rank_00_model_states.pt", "PK");
  write(scratch / "ds/global_step3/notes.bin");
  write(scratch / "ds/zero_to_fp32.py");
  const Outcome deepspeed = inspect({scratch / "ds"});
  EXPECT_TRUE(says(deepspeed.out, "global_step1/: a deepspeed checkpoint of its own"))
      << deepspeed.out;
  EXPECT_TRUE(says(deepspeed.out, "global_step3/notes.bin: a torch.save file")) << deepspeed.out;
  EXPECT_TRUE(says(deepspeed.out, "zero_to_fp32.py: nothing trained")) << deepspeed.out;

  copy("megatron/muon_distopt_tp2_dp2/data", scratch / "run");
  copy("megatron/api_uneven_prepend2_w3/data/iter_0000012", scratch / "run/iter_0000001");
  const Outcome megatron = inspect({scratch / "run"});
  EXPECT_TRUE(says(megatron.out, "iter_0000001/: a megatron checkpoint of its own"))
      << megatron.out;
}

// What a format's own loaders use is no neighbour of it.
TEST(InspectBeside, OfAWholeCheckpointNothingIsBeside) {
  for (const char* whole :
       {"dcp/fsdp2_w1/data", "dcp/no_collectives_w2/data", "deepspeed/z3_muon_nvme_w2/data",
        "deepspeed/universal_z1_adamw/data", "deepspeed/universal_z3_adamw/data",
        "megatron/muon_distopt_tp2_dp2/data", "megatron/fsdp_uneven_w3_muon/data",
        "megatron/legacy012_flattened_tp2_dp2/data", "safetensors/dcp_hf_index/data",
        "safetensors/dcp_hf_sharded_w3/data", "ebb/v1_w2/data", "torch/muon_adamw_state/data",
        "folders/fsdp_sharded/data", "folders/lightning/data"}) {
    const Outcome run = inspect({whole});
    EXPECT_EQ(run.exit, 0) << whole << run.err;
    EXPECT_FALSE(says(run.out, "  beside ")) << run.out;
  }
}

// As downloads and exporters leave them: no states, whatever a name sounds like.
TEST(InspectBeside, WhatOnlySoundsLikeAnOptimizersIsNone) {
  const ScratchDirectory scratch;
  lay_out(scratch / "c", {"optimum.pt", "encoder_optimized.bin", "model_optimized.onnx",
                          "optimizer_config.json", ".cache/huggingface/a.metadata"});
  const Outcome run = inspect({scratch / "c"});
  EXPECT_TRUE(says(run.out, "optimum.pt: a torch.save file\n")) << run.out;
  EXPECT_TRUE(says(run.out, "model_optimized.onnx: a model as ONNX has it\n")) << run.out;
  EXPECT_TRUE(says(run.out, ".cache/, optimizer_config.json: nothing trained\n")) << run.out;
  EXPECT_EQ(run_program("ckpt-convert", {scratch / "c", scratch / "d", "--to", "dcp"}).exit, 0);
}

// Were each looked at beside each, ten times as many would take a hundred times the time.
TEST(InspectBeside, ManyFilesAreOneLineAndTakeNoTime) {
  const ScratchDirectory scratch;
  const auto seconds = [&](int files) {
    const std::string folder = scratch / std::to_string(files);
    lay_out(folder, {});
    for (int i = 0; i < files; ++i) write(folder + "/rng_state_" + std::to_string(i) + ".pth");
    return test_support::cost_of([&] { inspect({folder}); }).seconds;
  };
  const double few = seconds(1000);
  EXPECT_LE(seconds(10'000), 30 * few);  // both 0 under sanitizers
  const Outcome run = inspect({scratch / "10000"});
  EXPECT_TRUE(says(run.out, "rng_state_0.pth and 9,999 alike: what the job keeps of its own\n"))
      << run.out;
}

}  // namespace
}  // namespace ebb
