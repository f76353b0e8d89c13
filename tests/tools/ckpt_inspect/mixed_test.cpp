// Files of two saves in one checkpoint: damage, and found.
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "ebb/formats/dcp/dcp.h"
#include "tests/support/emit_in_memory.h"
#include "tests/tools/ckpt_inspect/inspect.h"

namespace ebb {

namespace {

namespace fs = std::filesystem;
using inspect_test::inspect;
using test_support::Outcome;
using test_support::ScratchDirectory;

// Four parameters' step counters.
class Counters : public Checkpoint {
 public:
  explicit Counters(float steps) : steps_(steps) {
    for (const char* name : {"a", "b", "c", "d"}) {
      TensorEntry tensor;
      tensor.name = name;
      tensor.state = "step";
      tensor.chunks.push_back({});
      catalog_.tensors.push_back(std::move(tensor));
    }
  }
  const Catalog& catalog() const override { return catalog_; }
  Result<> read_chunk(const TensorEntry&, const Chunk&, std::uint64_t first,
                      std::span<std::byte> into) const override {
    std::memcpy(into.data(), reinterpret_cast<const std::byte*>(&steps_) + first, into.size());
    return {};
  }

 private:
  float steps_;
  Catalog catalog_;
};

// Ranks take turns.
void save_dcp(const Counters& counters, const std::string& folder) {
  const auto layout =
      Layout::make({.policy = Policy::layer_wise, .mesh = {2, 1}, .owners = {0, 1, 0, 1}},
                   std::vector<Shape>(4));
  ASSERT_TRUE(layout) << layout.error().message;
  const auto plan = formats::emit_dcp({counters.catalog(), *layout});
  ASSERT_TRUE(plan) << plan.error().message;
  const auto tree = test_support::carry_out(*plan, counters, "save");
  ASSERT_TRUE(tree) << tree.error().message;
  fs::create_directory(folder);
  for (const auto& entry : (*tree)->entries()) {
    const auto source = (*tree)->open(entry.name);
    ASSERT_TRUE(source);
    ByteVector bytes((*source)->size());
    ASSERT_TRUE((*source)->read(0, bytes));
    std::ofstream(folder + "/" + entry.name, std::ios::binary) << formats::text_of(bytes);
  }
}

// DCP has no number of a save; files of the same names and sizes fit each other.
TEST(InspectMixed, DcpFilesThatCountDifferentStepsAreOfTwoSaves) {
  const ScratchDirectory scratch;
  const std::string third = scratch / "step3", fourth = scratch / "step4";
  save_dcp(Counters(3), third);
  save_dcp(Counters(4), fourth);
  ASSERT_EQ(inspect({third, "--verify"}).exit, 0);
  fs::copy_file(fourth + "/__1_0.distcp", third + "/__1_0.distcp",
                fs::copy_options::overwrite_existing);
  const Outcome run = inspect({third, "--verify"});
  EXPECT_EQ(run.exit, 1);
  EXPECT_NE(run.out.find("files of two saves: steps counted of optimizer.state.a.step in "
                         "__0_0.distcp 3.0, of optimizer.state.b.step in __1_0.distcp 4.0"),
            std::string::npos)
      << run.out;
}

// An earlier trainer_state.json copied over the one of its save. An optimizer that counted fewer
// steps is none: its job may have skipped some.
TEST(InspectMixed, AnOptimizerOfALaterSaveThanTrainerStateIsDamage) {
  const ScratchDirectory scratch;
  for (const auto& [step, exit] : {std::pair("1", 1), {"2", 0}, {"3", 0}}) {
    const std::string folder = scratch / step;
    inspect_test::copy("folders/trainer/data", folder);
    inspect_test::replace(folder + "/trainer_state.json", "\"global_step\": 2",
                          std::string("\"global_step\": ") + step);
    const Outcome run = inspect({folder, "--verify"});
    EXPECT_EQ(run.exit, exit) << run.out << run.err;
    EXPECT_EQ(run.out.find("optimizer.pt: optimizer.state.0.step has counted 2.0 steps, but "
                           "trainer_state.json only 1: files of two saves") == std::string::npos,
              exit == 0)
        << run.out;
  }
}

TEST(InspectMixed, DeepSpeedRankFilesOfTwoSavesAreDamage) {
  const ScratchDirectory scratch;
  const std::string copy = scratch / "ckpt";
  const fs::path fixtures = fs::path(EBB_FIXTURES) / "deepspeed";
  fs::copy(fixtures / "z2_adamw_fp16_w2/data", copy, fs::copy_options::recursive);
  const auto second_rank = [](const fs::path& below) {
    for (const auto& file : fs::recursive_directory_iterator(below))
      if (file.path().filename().string().find("_rank_1_mp_rank_00_optim") != std::string::npos)
        return file.path();
    return fs::path();
  };
  const fs::path ours = second_rank(copy), theirs = second_rank(fixtures / "z2_muon_bf16_w2/data");
  ASSERT_FALSE(ours.empty() || theirs.empty());
  fs::permissions(ours, fs::perms::owner_write, fs::perm_options::add);
  fs::copy_file(theirs, ours, fs::copy_options::overwrite_existing);
  for (const char* mode : {"--verify", "--tensors"}) {
    const Outcome run = inspect({copy, mode});
    EXPECT_EQ(run.exit, 3) << run.out << run.err;
    EXPECT_EQ(run.out, "");
  }
}

}  // namespace

}  // namespace ebb
