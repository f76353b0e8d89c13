// A part that is torn or missing is one error that names the file, and the way to the others.
#include <gtest/gtest.h>

#include <tuple>

#include "ebb/formats/describe.h"
#include "ebb/formats/folders/folders.h"
#include "ebb/formats/pickle/pickle_writer.h"
#include "tests/formats/folders/folders_fixtures.h"
#include "tests/support/archives.h"

namespace ebb {
namespace {

using folders_test::load;
using folders_test::Refusal;
using folders_test::refusal_of;
using folders_test::without;

bool is_damage(Code code) { return code == Code::corrupt || code == Code::incomplete; }

TEST(FoldersDamage, EveryTornPartIsNamed) {
  const std::pair<const char*, const char*> kParts[] = {
      {"trainer", "model.safetensors"},
      {"trainer", "optimizer.pt"},
      {"trainer", "scheduler.pt"},
      {"trainer", "rng_state.pth"},
      {"trainer", "trainer_state.json"},
      {"trainer_tied", "config.json"},
      {"trainer_bin", "pytorch_model.bin"},
      {"trainer_cut", "model-00002-of-00002.safetensors"},
      {"accelerate", "optimizer.bin"},
      {"accelerate", "random_states_0.pkl"},
      {"fsdp_sharded", "optimizer_0/.metadata"},
      {"fsdp_sharded", "pytorch_model_fsdp_0/__1_0.distcp"},
      {"fsdp_full", "pytorch_model_fsdp.bin"},
      {"lightning", "meta.pt"}};
  for (const auto& [folder, file] : kParts) {
    const auto tree = load(folder);
    ByteVector& bytes = tree->bytes_of(file);
    for (const std::size_t kept : {bytes.size() - 2, bytes.size() / 2, std::size_t{1}}) {
      bytes.resize(kept);
      const Refusal refusal = refusal_of(without(*tree, ""));
      EXPECT_TRUE(is_damage(refusal.code)) << folder << " " << file << " " << refusal.text;
      EXPECT_NE(refusal.text.find(file), std::string::npos) << refusal.text;
    }
  }
}

TEST(FoldersDamage, TheModelBesideATornOptimizerIsOffered) {
  const auto tree = load("trainer");
  tree->bytes_of("optimizer.pt").resize(100);
  const std::string text = refusal_of(without(*tree, "")).text;
  EXPECT_NE(text.find("model.safetensors beside it, named itself"), std::string::npos) << text;
}

TEST(FoldersDamage, AMissingPartOfAPartIsIncomplete) {
  for (const auto& [folder, file] : {std::pair("trainer_cut", "model-00001-of-00002.safetensors"),
                                     std::pair("fsdp_sharded", "optimizer_0/__1_0.distcp"),
                                     std::pair("fsdp_sharded", "pytorch_model_fsdp_0/.metadata"),
                                     std::pair("lightning", "__0_0.distcp")}) {
    const Refusal refusal = refusal_of(without(*load(folder), file));
    EXPECT_EQ(refusal.code, Code::incomplete) << folder << refusal.text;
  }
  // The index is gone, too: the names of the others still say how many there were.
  const auto cut = without(*load("trainer_cut"), "model.safetensors.index.json");
  const Refusal refusal = refusal_of(without(*cut, "model-00001-of-00002.safetensors"));
  EXPECT_EQ(refusal.code, Code::incomplete) << refusal.text;
}

TEST(FoldersDamage, ASchedulerOfALaterSaveIsFound) {
  for (const auto& [folder, kind, epoch, problems] :
       {std::tuple("trainer", formats::FolderKind::trainer, 2, 0),
        std::tuple("trainer", formats::FolderKind::trainer, 5, 1),
        std::tuple("fsdp_sharded", formats::FolderKind::fsdp, 1, 0),
        std::tuple("fsdp_sharded", formats::FolderKind::fsdp, 5, 1)}) {
    const auto tree = load(folder);
    formats::PickleWriter scheduler;
    scheduler.dict([&] { scheduler.entry("last_epoch", epoch); });
    tree->bytes_of("scheduler.pt") = test_support::archive_around(scheduler.finish());
    const auto read = formats::describe(tree);
    ASSERT_TRUE(read) << read.error().message;
    ASSERT_EQ((*read)->catalog().step, 2) << folder;
    const auto found = formats::folder_problems(kind, tree, (*read)->catalog());
    ASSERT_EQ(found.size(), std::size_t(problems)) << folder << epoch;
    if (problems == 0) continue;
    EXPECT_NE(found[0].message.find("scheduler.pt has counted 5 steps, but trainer_state.json only "
                                    "2: files of two saves"),
              std::string::npos)
        << found[0].message;
  }
}

}  // namespace
}  // namespace ebb
