// What a folder is taken for: one file that several frameworks write claims nothing, a save of
// another kind is named, and where the folder is above checkpoints those are named.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "ebb/formats/pickle/pickle_writer.h"
#include "tests/support/archives.h"
#include "tests/support/pickled_tensors.h"
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
using test_support::ScratchDirectory;

// A sound torch.save file of a model and its optimizer.
void save_torch(const std::string& to) { copy("torch/muon_adamw_state/data/ckpt.pt", to); }

void expect_refused(const std::string& path, int exit, const std::string& part) {
  const Outcome run = inspect({path});
  EXPECT_EQ(run.exit, exit) << run.out << run.err;
  EXPECT_TRUE(says(run.err, part)) << run.err;
}

// verl, and who else calls it so, writes Megatron's tracker beside folders of its own.
TEST(InspectRecognition, ATrackerWithoutIterationsClaimsNothing) {
  const ScratchDirectory scratch;
  write(scratch / "latest_checkpointed_iteration.txt", "50");
  save_torch(scratch / "global_step_50/actor/model_world_size_2_rank_0.pt");
  save_torch(scratch / "global_step_50/actor/model_world_size_2_rank_1.pt");
  expect_refused(scratch.path(), 2, "1 lies below it: global_step_50/actor\nhint: name it: ");
}

TEST(InspectRecognition, FilesOfWhichEachRankWroteOneAreAFamilyAndNoChoice) {
  struct Case {
    std::vector<std::string> files;
    std::string said;
  };
  const Case cases[] = {
      {{"model_world_size_2_rank_0.pt", "model_world_size_2_rank_1.pt",
        "optim_world_size_2_rank_0.pt", "optim_world_size_2_rank_1.pt",
        "extra_state_world_size_2_rank_0.pt"},
       "model_world_size_2_rank_*.pt, 2 files)"},
      {{"model_world_size_8_rank_0.pt", "model_world_size_8_rank_1.pt"},
       "model_world_size_8_rank_*.pt, 2 files of 8)"},
      {{"pytorch_model_fsdp_0_rank0.bin", "pytorch_model_fsdp_0_rank1.bin", "optimizer_0_rank0.bin",
        "optimizer_0_rank1.bin", "rng_state_0.pth", "rng_state_1.pth"},
       "pytorch_model_fsdp_0_rank*.bin, 2 files)"},
      {{"ep10-ba50-rank0.pt", "ep10-ba50-rank1.pt", "ep10-ba50-rank2.pt"},
       "ep10-ba50-rank*.pt, 3 files)"},
      {{"consolidated.00.pth", "consolidated.01.pth"}, "consolidated.*.pth, 2 files)"},
  };
  for (const Case& one : cases) {
    const ScratchDirectory scratch;
    for (const std::string& file : one.files) save_torch(scratch / file);
    expect_refused(scratch.path(), 4, one.said);
    const Outcome part = inspect({scratch / one.files.front()});
    EXPECT_EQ(part.exit, 0) << part.err;
    EXPECT_TRUE(says(part.out, "one part of a save")) << part.out;
  }
}

// verl's three families, of which one holds what the job keeps: no items of torch_checkpointing.
TEST(InspectRecognition, FilesThatSayRankAreOfRanksHoweverManyFamiliesThereAre) {
  const ScratchDirectory scratch;
  const std::string from = "torch/ranks_hybrid_w4/data/";
  for (const char* rank : {"0", "1", "2", "3"}) {
    const std::string end = std::string("_world_size_4_rank_") + rank + ".pt";
    copy(from + "pytorch_model_fsdp_0_rank" + rank + ".bin", scratch / ("model" + end));
    copy(from + "optimizer_0_rank" + rank + ".bin", scratch / ("optim" + end));
    copy("folders/trainer/data/rng_state.pth", scratch / ("extra_state" + end));
  }
  const Outcome run = inspect({scratch.path()});
  EXPECT_EQ(run.exit, 0) << run.err;
  EXPECT_TRUE(says(run.out, ": torch, ")) << run.out;
  EXPECT_TRUE(says(run.out, "extra_state_world_size_4_rank_0.pt and 3 alike: what the job keeps"))
      << run.out;
}

// A torch.save file of an object that names these.
void save_object(const std::string& to, std::initializer_list<std::string_view> modules) {
  formats::PickleWriter pickle;
  pickle.call(*modules.begin(), "Arguments", [&] {
    for (const std::string_view module : modules) pickle.global(module, "Strategy");
  });
  const ByteVector bytes = test_support::archive_around(pickle.finish());
  write(to, std::string(formats::text_of(bytes)));
}

TEST(InspectRecognition, TheArgumentsOfATrainerAreNoCheckpointAndNoAlarm) {
  const ScratchDirectory scratch;
  const std::string path = scratch / "training_args.bin";
  save_object(path,
              {"transformers.training_args", "transformers.trainer_utils", "accelerate.utils"});
  expect_refused(path, 4, "the arguments of transformers' Trainer: an object of Python's");
  EXPECT_EQ(inspect({path, "--raw"}).exit, 0);
  const Outcome converted =
      test_support::run_program("ckpt-convert", {path, scratch / "out", "--to", "dcp", "--drop"});
  EXPECT_EQ(converted.exit, 4) << converted.err;
  // What else it names is as unsafe as anywhere.
  save_object(path, {"transformers.training_args", "posix"});
  expect_refused(path, 3, "the pickle names");
  save_object(path, {"transformers_of_mine.training_args"});
  expect_refused(path, 3, "the pickle names");
}

// Composer's rank0 file of an unsharded job, a file that says it is the only one.
TEST(InspectRecognition, AFileOfOneRankThatIsAloneIsAllOfIt) {
  const ScratchDirectory scratch;
  save_torch(scratch / "a/ep0-ba10-rank0.pt");
  save_torch(scratch / "b/model_world_size_1_rank_0.pt");
  save_torch(scratch / "b/optim_world_size_1_rank_0.pt");
  for (const std::string& file : {scratch / "a/ep0-ba10-rank0.pt", scratch / "a",
                                  scratch / "b/model_world_size_1_rank_0.pt", scratch / "b"}) {
    const Outcome run = inspect({file});
    EXPECT_EQ(run.exit, 0) << run.err;
    EXPECT_FALSE(says(run.out, "one part of a save")) << run.out;
  }
  save_torch(scratch / "c/ep0-ba10-rank3.pt");
  EXPECT_TRUE(says(inspect({scratch / "c/ep0-ba10-rank3.pt"}).out, "one part of a save"));
}

TEST(InspectRecognition, FoldersOfMegatronsRanksAreOneCheckpoint) {
  const ScratchDirectory scratch;
  copy("megatron_torch/adam_tp2_pp2_vpp2/data", scratch / "run");
  const std::string iteration = scratch / "run/iter_0000003";
  EXPECT_TRUE(says(inspect({scratch / "run"}).out, ": megatron-torch, "));
  EXPECT_TRUE(says(inspect({iteration}).out, ": megatron-torch, "));
  for (const char* named : {"/mp_rank_01_000/model_optim_rng.pt", "/mp_rank_01_000"}) {
    const Outcome part = inspect({iteration + named});
    EXPECT_EQ(part.exit, 0) << part.err;
    EXPECT_TRUE(says(part.out, "one part of a save of 4, as its arguments say")) << part.out;
  }
  EXPECT_EQ(inspect({scratch / "run", "--explain-resume", "8"}).exit, 0);
  const Outcome other = inspect({scratch / "run", "--explain-resume", "3"});
  EXPECT_EQ(other.exit, 1);
  EXPECT_TRUE(says(other.out, "--to megatron --world-size 3")) << other.out;
  fs::remove(scratch / "run/latest_checkpointed_iteration.txt");
  EXPECT_TRUE(says(inspect({scratch / "run"}).out, ": megatron-torch, "));
  fs::remove_all(iteration + "/mp_rank_01_001");
  expect_refused(scratch / "run", 3, "1 of the 4 ranks' files is missing: mp_rank_01_001/");
  save_torch(iteration + "/mp_rank_01_001/model_optim_rng.pt");
  expect_refused(scratch / "run", 3, "holds 1 part of the model, unlike ");
}

TEST(InspectRecognition, CommonPtAloneIsAMegatronSaveThatDied) {
  const ScratchDirectory scratch;
  copy("megatron/muon_distopt_tp2_dp2/data/iter_0000003", scratch / "run/iter_0000003");
  save_torch(scratch / "run/iter_0000010/common.pt");
  expect_refused(scratch / "run/iter_0000010", 3, "the save did not finish");
  expect_refused(scratch / "run", 3, "name one: " + scratch / "run/iter_0000003");
  save_torch(scratch / "elsewhere/common.pt");
  expect_refused(scratch / "elsewhere", 4, "no checkpoint of a known format");
}

TEST(InspectRecognition, TorchCheckpointingsFoldersAreListedAndWhatItLeftUnfinishedIsNot) {
  const ScratchDirectory scratch;
  for (const char* name : {"run/step_10", "run/step_20", "run/tmp_step_30"})
    copy("torch_checkpointing/trained_w3/data", scratch / name);
  expect_refused(scratch / "run", 2, "the newest that is whole: " + scratch / "run/step_20");
  EXPECT_TRUE(says(inspect({scratch / "run/tmp_step_30"}).out, "a save that was not finished"));
  fs::remove(scratch / "run/tmp_step_30/metadata.pkl");
  fs::remove(scratch / "run/tmp_step_30/optim_1.pt");
  expect_refused(scratch / "run", 2, "the newest that is whole: " + scratch / "run/step_20");
  const Outcome run = inspect({scratch / "run/step_20"});
  EXPECT_EQ(run.exit, 0) << run.err;
  EXPECT_TRUE(says(run.out, ": torch-checkpointing, ")) << run.out;
}

// A file of a run without ZeRO has no shapes of parts: it is read (tests/formats/deepspeed).
TEST(InspectRecognition, DeepSpeedsModelFileWithoutTheOthersIsIncomplete) {
  const ScratchDirectory scratch;
  const std::string file = scratch / "global_step3/mp_rank_00_model_states.pt";
  copy("deepspeed/z2_adam_fp32_w3/data/global_step3/mp_rank_00_model_states.pt", file);
  write(scratch / "latest", "global_step3");
  expect_refused(scratch.path(), 3, "no optim_states.pt file, which holds ZeRO's master weights");
  const Outcome run = inspect({file});
  EXPECT_EQ(run.exit, 0) << run.err;
  EXPECT_TRUE(says(run.out, ": torch, ")) << run.out;
  // With ZeRO the same file is one of many.
  const Outcome zero =
      inspect({"deepspeed/z2_adam_fp32_w3/data/global_step3/mp_rank_00_model_states.pt"});
  EXPECT_EQ(zero.exit, 2) << zero.out;
  EXPECT_TRUE(says(zero.err, "one file of a deepspeed checkpoint")) << zero.err;
}

// What one file says of a stage, of a layer, of experts: the rest of it is missing, or it is
// damaged, or it lies beside.
TEST(InspectRecognition, AFileOfDeepSpeedsOtherParallelismsIsNotPassedOver) {
  const auto with = [](const ScratchDirectory& scratch, const std::string& more) {
    copy("deepspeed/z2_adam_fp32_w3/data/global_step3", scratch / "global_step3");
    write(scratch / ("global_step3/" + more));
  };
  const ScratchDirectory stage, layer, experts;
  with(stage, "mp_rank_01_model_states.pt");
  expect_refused(stage.path(), 3, "optimizer files of ranks 0, 1, 2 of mp_rank_01 are missing");
  with(layer, "layer_00-model_states.pt");
  expect_refused(layer.path(), 3, "layer_00-model_states.pt:0: ");
  with(experts, "expp_rank_0_mp_rank_00_optim_states.pt");
  const Outcome beside = inspect({experts.path()});
  EXPECT_EQ(beside.exit, 0) << beside.err;
  EXPECT_TRUE(says(beside.out, "beside    global_step3/expp_rank_0_mp_rank_00_optim_states.pt"))
      << beside.out;
}

// transformers' Trainer keeps `latest` and the tag in checkpoint-N.
TEST(InspectRecognition, AParentOfDeepSpeedsCheckpointsNamesTheFolderThatTheJobWants) {
  const ScratchDirectory scratch;
  for (const char* folder : {"out/checkpoint-3", "out/checkpoint-6"}) {
    copy("deepspeed/z2_adam_fp32_w3/data", scratch / folder);
    expect_refused(scratch / "out", 2, "hint: ");
    const Outcome run = inspect({scratch / "out"});
    EXPECT_TRUE(says(run.err, scratch / folder)) << run.err;
    EXPECT_FALSE(says(run.out + run.err, "no file latest")) << run.out << run.err;
  }
}

TEST(InspectRecognition, AFolderOfFsdpThroughAccelerateNamesItsTwoHalves) {
  const ScratchDirectory scratch;
  copy("dcp/layout_titan_last/data", scratch / "model");  // looked at for its layout alone
  for (const char* file : {"rng_state_0.pth", "rng_state_1.pth", "scheduler.pt"})
    save_torch(scratch / ("checkpoint-2/" + std::string(file)));
  fs::create_directories(scratch / "checkpoint-2/pytorch_model_fsdp_0");
  write_safetensors(scratch / "checkpoint-2/pytorch_model_fsdp_0/m.safetensors", "F32", "[2]",
                    bytes_of<float>({1, 2}), "a.weight");
  copy("dcp/fsdp2_w1/data", scratch / "checkpoint-2/optimizer_0");
  expect_refused(scratch / "checkpoint-2", 2, "optimizer_0");
  expect_refused(scratch / "checkpoint-2", 2, "pytorch_model_fsdp_0");
  const Outcome run = inspect({scratch / "checkpoint-2"});
  EXPECT_FALSE(says(run.err, "rng_state")) << run.err;
}

TEST(InspectRecognition, AnOptimizerBesideAModelIsNoChoice) {
  const ScratchDirectory scratch;
  copy("folders/fsdp_full/data", scratch / "c");
  const Outcome run = inspect({scratch / "c"});
  EXPECT_EQ(run.exit, 0) << run.err;
  EXPECT_TRUE(says(run.out, ": accelerate-fsdp, ")) << run.out;
  fs::remove(scratch / "c/pytorch_model_fsdp.bin");
  EXPECT_EQ(inspect({scratch / "c"}).exit, 0) << "the only one there is";
}

// Of transformers' Trainer: by steps, and one that is torn is not whole.
TEST(InspectRecognition, AParentOfTrainersFoldersNamesTheNewestWholeOne) {
  const ScratchDirectory scratch;
  for (const char* name : {"out/checkpoint-9", "out/checkpoint-10", "other/checkpoint-11"})
    copy("folders/trainer/data", scratch / name);
  for (const char* number : {"9", "10"})
    write(scratch / ("out/checkpoint-" + std::string(number) + "/trainer_state.json"),
          "{\"global_step\": " + std::string(number) + "}");
  expect_refused(scratch / "out", 2,
                 "2 lie below it: checkpoint-9, checkpoint-10\nhint: the newest that is whole: " +
                     scratch / "out/checkpoint-10 (step 10)");
  fs::resize_file(scratch / "out/checkpoint-10/optimizer.pt", 100);
  expect_refused(scratch / "out", 2, "whole: " + scratch / "out/checkpoint-9 (step 9)");
  expect_refused(scratch / "out/checkpoint-10", 3, "optimizer.pt:");
  expect_refused(scratch / "out/checkpoint-10", 3, "beside it: " + scratch / "out/checkpoint-9");
  // A save that died before its optimizer is of another format, and of the same run.
  fs::remove(scratch / "out/checkpoint-10/optimizer.pt");
  expect_refused(scratch / "out", 2,
                 "optimizer's states: " + scratch / "out/checkpoint-9 (step 9)");
  fs::remove(scratch / "out/checkpoint-9/scheduler.pt");
  EXPECT_FALSE(says(inspect({scratch / "out"}).err, "other")) << "a neighbour's";
}

TEST(InspectRecognition, AMixedFolderIsListedByFormatAndNoneIsPicked) {
  const ScratchDirectory scratch;
  copy("dcp/fsdp2_w1/data", scratch / "b/dcp-1");
  copy("dcp/fsdp2_w1/data", scratch / "b/dcp-2");
  copy("deepspeed/z2_adam_fp32_w3/data", scratch / "a/ds");
  const Outcome run = inspect({scratch.path()});
  EXPECT_EQ(run.exit, 2);
  EXPECT_EQ(run.err, "ckpt-inspect: error: " + scratch.path() +
                         ": no checkpoint itself; 3 lie below it: 2 dcp (b/dcp-1, b/dcp-2); "
                         "1 deepspeed (a/ds)\nhint: name one of them\n");
}

TEST(InspectRecognition, CheckpointsSomeLevelsBelowAreFound) {
  const ScratchDirectory scratch;
  copy("dcp/fsdp2_w1/data", scratch / "run/step100/state");
  write(scratch / "run/step100/train/rank0.pt");
  for (const char* folder : {"run", "run/step100", "."})
    expect_refused(scratch / folder, 2, scratch / "run/step100/state");
}

// verl's dataloader is no checkpoint; the actor beside it is one.
TEST(InspectRecognition, WhatAJobKeepsOfItsDataHidesNoCheckpoint) {
  const ScratchDirectory scratch;
  copy("dcp/fsdp2_w1/data", scratch / "global_step_5/actor");
  write(scratch / "global_step_5/data.pt");
  expect_refused(scratch / "global_step_5", 2, "1 lies below it: actor");
}

// A wrapper's words in the model's names alone: each parameter counts once.
TEST(InspectRecognition, WrappedParametersAreCountedOnce) {
  const ScratchDirectory scratch;
  formats::PickleWriter pickle;
  const auto tensors = [&](const char* key, const std::string& before, const std::string& state) {
    pickle.dict(key, [&] {
      for (const char* name : {"a.w", "b.w", "c.w"}) {
        if (state.empty()) {
          pickle.string(before + name);
          test_support::plain_tensor(pickle, "0", {4});
          continue;
        }
        pickle.dict(before + name, [&] {
          pickle.string(state);
          test_support::plain_tensor(pickle, "0", {4});
        });
      }
    });
  };
  pickle.dict([&] {
    tensors("model", "a._checkpoint_wrapped_module.", "");
    pickle.dict("optimizer", [&] { tensors("state", "a.", "exp_avg"); });
  });
  std::ofstream(scratch / "x.pt", std::ios::binary)
      << formats::text_of(test_support::archive_around(pickle.finish()));
  const Outcome run = inspect({scratch / "x.pt"});
  EXPECT_TRUE(says(run.out, "holds     3 parameters, 6 tensors")) << run.out << run.err;
}

// Of transformers' Trainer, whose states are a file beside the weights.
TEST(InspectRecognition, StatesBesideTheWeightsCountForTheHint) {
  const ScratchDirectory scratch;
  for (const char* name : {"checkpoint-9", "checkpoint-10", "final"}) {
    fs::create_directories(scratch / name);
    write_safetensors(scratch / (std::string(name) + "/model.safetensors"), "F32", "[2]",
                      bytes_of<float>({1, 2}), "a.weight");
  }
  for (const char* name : {"checkpoint-9", "checkpoint-10"})
    write(scratch / (std::string(name) + "/muon_optim.pt"));
  expect_refused(scratch.path(), 2, "optimizer's states: " + scratch / "checkpoint-10");
}

// The last save of a torchtitan run is the model alone.
TEST(InspectRecognition, TheHintIsTheNewestThatHasAnOptimizer) {
  const ScratchDirectory scratch;
  copy("dcp/layout_titan/data", scratch / "step-2");
  copy("dcp/layout_titan_last/data", scratch / "step-3");
  const Outcome run = inspect({scratch.path()});
  EXPECT_TRUE(says(run.err, "optimizer's states: " + scratch / "step-2")) << run.err;
  EXPECT_TRUE(says(run.err, scratch / "step-3 is newer, but holds weights alone")) << run.err;
}

TEST(InspectRecognition, AnotherModelBesideADamagedCheckpointIsNoAdvice) {
  const ScratchDirectory scratch;
  copy("deepspeed/z3_muon_bf16_w4/data", scratch / "runA");
  copy("deepspeed/z3_adamw_bf16_w4/data", scratch / "runB");
  copy("deepspeed/z3_muon_experts_w2/data", scratch / "runC");
  fs::remove(scratch / "runA/global_step3/zero_pp_rank_1_mp_rank_00_model_states.pt");
  const Outcome run = inspect({scratch / "runA"});
  EXPECT_EQ(run.exit, 3);
  EXPECT_FALSE(says(run.err, "runC")) << run.err;
  copy("deepspeed/z3_muon_bf16_w4/data", scratch / "again");
  EXPECT_TRUE(says(inspect({scratch / "runA"}).err, "beside it: " + scratch / "again")) << run.err;
}

TEST(InspectRecognition, OfTwoNodesTheOneWithoutRank0IsNoSaveThatDied) {
  const ScratchDirectory scratch;
  write(scratch / "__1_0.distcp");
  expect_refused(scratch.path(), 3, "rank 0's files lie on another node");
  write(scratch / "__0_0.distcp");
  EXPECT_FALSE(says(inspect({scratch.path()}).err, "another node"));
  // A single file far below is no torch.save file of the folder above.
  save_torch(scratch / "node/deep/other/a.pt");
  expect_refused(scratch / "node", 2, "1 lies below it: deep/other\n");
}

}  // namespace
}  // namespace ebb
