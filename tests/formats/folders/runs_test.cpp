// Folders of OLMo-core, NeMo AutoModel, prime-rl and nanochat, each as one checkpoint.
#include <gtest/gtest.h>

#include <algorithm>

#include "ebb/formats/catalog/resume.h"
#include "ebb/formats/describe.h"
#include "ebb/formats/registry.h"
#include "ebb/formats/state_dict/names.h"
#include "tests/formats/folders/folders_fixtures.h"

namespace ebb {
namespace {

using folders_test::bytes_in;
using folders_test::digests_in;
using folders_test::has_note;
using folders_test::load;
using folders_test::truth_of;
using folders_test::value_of;
using folders_test::without;

std::unique_ptr<Checkpoint> described(const std::shared_ptr<const formats::SourceTree>& tree) {
  auto checkpoint = formats::describe(tree);
  EXPECT_TRUE(checkpoint) << (checkpoint ? "" : checkpoint.error().message);
  return checkpoint ? *std::move(checkpoint) : nullptr;
}

bool resumes(const Catalog& catalog) {
  return resume_answer(formats::format_of(catalog).resume_rules(), {catalog, 1}).resumable;
}

std::vector<std::string> beside(const Catalog& catalog, formats::BesideEntry::Role role) {
  std::vector<std::string> names;
  for (const auto& entry : catalog.beside)
    if (entry.role == role) names.push_back(entry.path);
  return names;
}

TEST(FoldersOfRuns, AreThatOfTheFrameworkBitForBit) {
  struct Case {
    const char* folder;
    const char* format;
    std::int64_t step;
  };
  for (const auto& [folder, format, step] :
       {Case{"olmo", "olmo-core", 200}, Case{"automodel", "automodel", 19},
        Case{"prime_rl", "prime-rl", 100}, Case{"nanochat", "nanochat", 200}}) {
    const auto checkpoint = described(load(folder));
    ASSERT_NE(checkpoint, nullptr) << folder;
    const Catalog& catalog = checkpoint->catalog();
    EXPECT_EQ(catalog.format, format);
    EXPECT_EQ(catalog.step, step) << folder;
    EXPECT_TRUE(prove_coverage(catalog)) << folder;
    EXPECT_TRUE(resumes(catalog)) << folder;
    ASSERT_EQ(catalog.groups.size(), 1u) << folder;
    EXPECT_EQ(catalog.groups.front().params.size(), 3u) << folder;
    if (catalog.format == "nanochat") continue;  // two of three have one shape, and no names
    EXPECT_TRUE(beside(catalog, formats::BesideEntry::Role::unknown).empty()) << folder;
    EXPECT_TRUE(formats::mere_numbers(catalog).empty()) << folder;
    EXPECT_EQ(digests_in(*checkpoint), truth_of(folder)) << folder;
  }
}

TEST(FoldersOfRuns, HaveWhatTheJobKeepsAsValues) {
  const std::pair<const char*, const char*> kValues[] = {
      {"olmo", "train_1.rng.torch"},
      {"olmo", "train_0.data_loader.batches_processed"},
      {"automodel", "rng_0.torch_rng_state"},
      {"automodel", "sched.num_steps"},
      {"automodel", "dataloader_0._snapshot._snapshot_step"},
      {"prime_rl", "app.scheduler.last_epoch"},
      {"prime_rl", "dataloader_1.dataset_state.rank"},
      {"prime_rl", "orchestrator.total_problems"},
      {"nanochat", "meta.loop_state"}};
  for (const auto& [folder, key] : kValues) {
    const auto checkpoint = described(load(folder));
    ASSERT_NE(checkpoint, nullptr) << folder;
    EXPECT_NE(value_of(checkpoint->catalog(), key), nullptr) << folder << " " << key;
  }
}

TEST(FoldersOfRuns, NameWhatLiesBeside) {
  const auto model = described(load("automodel"));
  ASSERT_NE(model, nullptr);
  EXPECT_EQ(beside(model->catalog(), formats::BesideEntry::Role::checkpoint),
            std::vector<std::string>{"model/consolidated/"});
  const auto nanochat = described(load("nanochat"));
  ASSERT_NE(nanochat, nullptr);
  EXPECT_TRUE(has_note(nanochat->catalog(), "model_000200.pt, the newest save here, is read"));
  EXPECT_TRUE(has_note(nanochat->catalog(), "is read; not model_000100.pt"));
}

// A tracker, a folder of the name or a half of a save claims nothing.
TEST(FoldersOfRuns, AreToldByWhatLiesInThem) {
  const auto format_of = [](const formats::SourceTree& tree) {
    const formats::Format* format = formats::format_at(tree);
    return std::string(format == nullptr ? "" : format->name());
  };
  test_support::MemoryTree names("names");
  for (const char* name : {"LATEST", "model_and_optim/x.txt", "optim/x.txt", "trainer/x.txt",
                           "weights/x.txt", "context/io.json", "meta_000100.json"})
    names.add(name, "x");
  EXPECT_EQ(format_of(names), "");
  const auto whole = load("automodel");
  auto half = std::make_shared<test_support::MemoryTree>("half");
  for (const auto& entry : whole->entries())
    if (!entry.name.starts_with("model/")) half->add(entry.name, bytes_in(*whole, entry.name));
  EXPECT_NE(format_of(*half), "automodel");
  EXPECT_EQ(format_of(*without(*load("nanochat"), "meta_000200.json")), "nanochat")
      << "the save before it is whole";
}

TEST(FoldersOfRuns, OfTornPartsNameTheFile) {
  const std::pair<const char*, const char*> kParts[] = {
      {"olmo", "train/rank1.pt"},           {"olmo", "model_and_optim/.metadata"},
      {"automodel", "step_scheduler.pt"},   {"automodel", "rng/rng_dp_rank_0.pt"},
      {"prime_rl", "trainer/__0_0.distcp"}, {"nanochat", "optim_000200_rank0.pt"},
      {"nanochat", "meta_000200.json"}};
  for (const auto& [folder, file] : kParts) {
    const auto tree = load(folder);
    tree->bytes_of(file).resize(tree->bytes_of(file).size() / 2);
    const auto refusal = folders_test::refusal_of(without(*tree, ""));
    EXPECT_TRUE(refusal.code == Code::corrupt || refusal.code == Code::incomplete) << file;
    EXPECT_NE(refusal.text.find(file), std::string::npos) << refusal.text;
  }
}

// As its optimizer cuts them: rows, small ones whole, a stack of Muon's dealt.
TEST(FoldersOfRuns, OfNanochatOnSeveralRanksAreJoined) {
  const auto checkpoint = described(load("nanochat_w2"));
  ASSERT_NE(checkpoint, nullptr);
  const Catalog& catalog = checkpoint->catalog();
  EXPECT_EQ(digests_in(*checkpoint), truth_of("nanochat_w2"));
  EXPECT_TRUE(prove_coverage(catalog));
  EXPECT_EQ(catalog.world, 2u);
  EXPECT_EQ(catalog.param_steps.at("wte"), 100);
  EXPECT_TRUE(catalog.beside.empty());
  EXPECT_FALSE(resumes(catalog)) << "on one rank";
}

// Where every rank wrote all of it.
TEST(FoldersOfRuns, OfNanochatMayBeCopies) {
  const auto tree = load("nanochat");
  tree->add("optim_000200_rank1.pt", bytes_in(*tree, "optim_000200_rank0.pt"));
  const auto copies = described(tree);
  ASSERT_NE(copies, nullptr);
  EXPECT_EQ(digests_in(*copies), digests_in(*described(load("nanochat"))));
}

TEST(FoldersOfRuns, OfNanochatMissARankBecauseOfItsShapes) {
  const auto tree = load("nanochat_w2");
  tree->add("optim_000100_rank2.pt", bytes_in(*tree, "optim_000100_rank1.pt"));
  const auto refusal = folders_test::refusal_of(tree);
  EXPECT_EQ(refusal.code, Code::incomplete) << refusal.text;
  EXPECT_NE(refusal.text.find("the parts of 3 ranks make"), std::string::npos) << refusal.text;
}

// torch's loader asks for the states of every parameter of a group.
TEST(FoldersOfRuns, DoNotResumeWithoutAParametersStates) {
  const auto checkpoint = described(load("prime_rl"));
  ASSERT_NE(checkpoint, nullptr);
  Catalog catalog = checkpoint->catalog();
  std::erase_if(catalog.tensors, [](const TensorEntry& tensor) {
    return tensor.name == "norm.weight" && tensor.state != "param";
  });
  EXPECT_FALSE(resumes(catalog));
}

}  // namespace
}  // namespace ebb
