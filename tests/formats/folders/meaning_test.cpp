// Which folder is one checkpoint, of which parts; and who could resume it.
#include <gtest/gtest.h>

#include <algorithm>

#include "ebb/formats/catalog/resume.h"
#include "ebb/formats/describe.h"
#include "ebb/formats/registry.h"
#include "tests/formats/folders/folders_fixtures.h"

namespace ebb {
namespace {

using folders_test::bytes_in;
using folders_test::load;
using folders_test::without;
using test_support::MemoryTree;

std::string format_of(const formats::SourceTree& tree) {
  const formats::Format* format = formats::format_at(tree);
  return format == nullptr ? "" : std::string(format->name());
}

formats::ResumeAnswer answer_of(const std::shared_ptr<const formats::SourceTree>& tree,
                                std::uint32_t world = 1) {
  const auto read = formats::describe(tree);
  EXPECT_TRUE(read) << (read ? "" : read.error().message);
  if (!read) return {};
  const Catalog& catalog = (*read)->catalog();
  return resume_answer(formats::format_of(catalog).resume_rules(), {catalog, world});
}

TEST(FoldersMeaning, TakesAModelAndAnOptimizer) {
  const auto trainer = load("trainer");
  EXPECT_EQ(format_of(*trainer), "transformers");
  EXPECT_EQ(format_of(*without(*trainer, "optimizer.pt")), "safetensors");
  EXPECT_EQ(format_of(*without(*trainer, "model.safetensors")), "torch");
  EXPECT_EQ(format_of(*load("accelerate")), "accelerate");
  const auto sharded = load("fsdp_sharded");
  auto half = std::make_shared<MemoryTree>("half");
  for (const auto& entry : sharded->entries())
    if (!entry.name.starts_with("optimizer_0/"))
      half->add(entry.name, bytes_in(*sharded, entry.name));
  EXPECT_EQ(format_of(*half), "") << "one half alone is named as what lies below";
  EXPECT_EQ(format_of(*without(*load("lightning"), "meta.pt")), "dcp");
}

// What the loaders of such jobs take: FSDP's own file before the one that transformers exports.
TEST(FoldersMeaning, OfTwoModelsTheJobsOwnIsRead) {
  const auto full = load("fsdp_full");
  full->add("model.safetensors", bytes_in(*load("trainer"), "model.safetensors"));
  const auto read = formats::describe(full);
  ASSERT_TRUE(read);
  EXPECT_EQ((*read)->catalog().format, "accelerate-fsdp");
  const auto& beside = (*read)->catalog().beside;
  EXPECT_NE(std::ranges::find(beside, "model.safetensors", &formats::BesideEntry::path),
            beside.end())
      << "and the other is named";
}

TEST(FoldersMeaning, SaysWhoResumesIt) {
  EXPECT_TRUE(answer_of(load("trainer")).resumable);
  EXPECT_EQ(answer_of(load("trainer")).loader, "transformers' Trainer");
  EXPECT_TRUE(answer_of(load("accelerate")).resumable);
  EXPECT_TRUE(answer_of(load("fsdp_sharded")).resumable);
  EXPECT_TRUE(answer_of(load("fsdp_full")).resumable);
  EXPECT_TRUE(answer_of(load("lightning")).resumable);
}

// Trainer's _load_optimizer_and_scheduler loads both or, without a word, neither.
TEST(FoldersMeaning, WithoutItsSchedulerTrainerStartsANewOptimizer) {
  const auto answer = answer_of(without(*load("trainer"), "scheduler.pt"));
  EXPECT_FALSE(answer.resumable);
  EXPECT_NE(answer.why.find("scheduler.pt is missing"), std::string::npos) << answer.why;
  EXPECT_FALSE(answer_of(without(*load("fsdp_sharded"), "scheduler.pt")).resumable);
  EXPECT_TRUE(answer_of(without(*load("fsdp_full"), "scheduler.bin")).resumable)
      << "accelerate alone may have had none";
}

// That it is a Trainer's, the names of other files tell: accelerate alone has scheduler.bin.
TEST(FoldersMeaning, WithoutItsStateTrainerDoesNotResume) {
  for (const char* folder : {"trainer", "fsdp_sharded"}) {
    const auto answer = answer_of(without(*load(folder), "trainer_state.json"));
    EXPECT_FALSE(answer.resumable) << folder;
    EXPECT_NE(answer.why.find("trainer_state.json is missing"), std::string::npos) << answer.why;
  }
  EXPECT_TRUE(answer_of(without(*load("fsdp_full"), "trainer_state.json")).resumable);
}

TEST(FoldersMeaning, ARankWithoutItsRandomNumbersIsNamed) {
  const auto says = [](const auto& tree, std::string_view note) {
    const auto notes = answer_of(tree, 2).notes;
    return std::ranges::find(notes, note) != notes.end();
  };
  constexpr std::string_view kNote =
      "rng_state_1.pth is missing: its rank starts other random numbers";
  const auto sharded = load("fsdp_sharded");
  EXPECT_FALSE(says(sharded, kNote));
  EXPECT_TRUE(says(without(*sharded, "rng_state_1.pth"), kNote));
  EXPECT_TRUE(answer_of(without(*sharded, "rng_state_1.pth"), 2).resumable);
}

// accelerate asks DCP for the states that its optimizer has, and that of version 1 has none yet.
TEST(FoldersMeaning, SaysWhichFsdpLoadsASaveInPieces) {
  const auto says = [](std::string_view folder) {
    return std::ranges::any_of(answer_of(load(folder), 2).notes, [](const std::string& note) {
      return note.starts_with("a job of FSDP version 1 loads no states from optimizer_0/");
    });
  };
  EXPECT_TRUE(says("fsdp_sharded"));
  EXPECT_FALSE(says("fsdp_full")) << "of one file either version loads them";
}

TEST(FoldersMeaning, WithoutItsModelNothingOfTrainerResumes) {
  const auto answer = answer_of(without(*load("trainer"), "model.safetensors"));
  EXPECT_FALSE(answer.resumable);
  EXPECT_NE(answer.why.find("the model"), std::string::npos) << answer.why;
}

TEST(FoldersMeaning, AnOptimizerOfAnotherModelIsSaidToBeOne) {
  const auto mixed = load("trainer");
  mixed->bytes_of("optimizer.pt") = bytes_in(*load("accelerate"), "optimizer.bin");
  const auto read = formats::describe(without(*mixed, ""));
  ASSERT_TRUE(read) << read.error().message;
  const auto& notes = (*read)->catalog().notes;
  EXPECT_TRUE(std::ranges::any_of(notes, [](const std::string& note) {
    return note.find("another model's") != std::string::npos;
  }));
  const auto answer = answer_of(without(*mixed, ""));
  EXPECT_FALSE(answer.resumable);
  EXPECT_NE(answer.why.find("another model's"), std::string::npos) << answer.why;
  // More parameters than the model has, whatever their shapes are.
  const auto small = load("fsdp_full");
  small->bytes_of("optimizer.bin") = bytes_in(*load("trainer"), "optimizer.pt");
  EXPECT_FALSE(answer_of(without(*small, "")).resumable);
}

TEST(FoldersMeaning, AnOptimizersFileThatHoldsNoneIsNamed) {
  const auto tree = load("trainer");
  tree->bytes_of("optimizer.pt") = bytes_in(*tree, "scheduler.pt");
  const auto read = formats::describe(without(*tree, ""));
  ASSERT_TRUE(read) << read.error().message;
  const auto& beside = (*read)->catalog().beside;
  const auto found = std::ranges::find(beside, "optimizer.pt", &formats::BesideEntry::path);
  ASSERT_NE(found, beside.end());
  EXPECT_TRUE(found->holds_states) << "so that no conversion starts a new one without a word";
}

}  // namespace
}  // namespace ebb
