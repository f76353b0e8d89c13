// What ckpt-convert may take the place of, and what it must not touch.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/tools/convert.h"

namespace ebb {
namespace {

namespace fs = std::filesystem;
using test_support::Outcome;
using test_support::run_program;
using test_support::ScratchDirectory;

constexpr const char* kSource = "deepspeed/z3_muon_bf16_w4/data";

void write(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

TEST(ConvertForce, ReplacesNothingButACheckpoint) {
  const ScratchDirectory scratch;
  const std::string out = scratch / "precious";
  fs::create_directories(out + "/sub");
  write(out + "/sub/thesis.tex", "years");
  const Outcome folder = convert({kSource, out, "-t", "dcp", "-f"});
  EXPECT_EQ(folder.exit, 2);
  EXPECT_NE(folder.err.find("sub/thesis.tex"), std::string::npos) << folder.err;
  const Outcome file = convert({kSource, out + "/sub/thesis.tex", "-t", "dcp", "-f"});
  EXPECT_EQ(file.exit, 2);
  EXPECT_TRUE(fs::is_regular_file(out + "/sub/thesis.tex"));
  fs::create_directory_symlink(out, scratch / "link");
  EXPECT_EQ(convert({kSource, scratch / "link", "-t", "dcp", "-f"}).exit, 2);
  EXPECT_TRUE(fs::is_symlink(scratch / "link"));
  // An empty folder is taken as it is; not by way of a link, which would be gone.
  fs::create_directories(scratch / "empty");
  fs::create_directory_symlink(scratch / "empty", scratch / "to-empty");
  const Outcome linked = convert({kSource, scratch / "to-empty", "-t", "dcp"});
  EXPECT_EQ(linked.exit, 2);
  EXPECT_NE(linked.err.find("is a symbolic link, which is not replaced"), std::string::npos)
      << linked.err;
  EXPECT_TRUE(fs::is_symlink(scratch / "to-empty"));
}

TEST(ConvertForce, LeavesACheckpointWithOtherFilesBesideIt) {
  const ScratchDirectory scratch;
  const std::string out = scratch / "out";
  ASSERT_EQ(convert({kSource, out, "-t", "safetensors"}).exit, 0);
  for (const char* name : {"a.txt", "b.txt", "c.txt", "config.json"}) write(out + "/" + name, "x");
  const Outcome run = convert({kSource, out, "-t", "dcp", "-f"});
  EXPECT_EQ(run.exit, 2);
  EXPECT_NE(run.err.find("4 files there belong to none: a.txt, b.txt, c.txt and 1 more"),
            std::string::npos)
      << run.err;
  EXPECT_TRUE(fs::exists(out + "/config.json"));
}

TEST(ConvertForce, ReplacesWhatItWroteInEveryFormatAndSaysSo) {
  const ScratchDirectory scratch;
  const std::string out = scratch / "out";
  std::string before;
  for (const char* format : {"dcp", "safetensors", "torch", "megatron", "megatron-fsdp",
                             "deepspeed", "deepspeed-universal", "ebb", "dcp"}) {
    const Outcome run = convert({kSource, out, "-t", format, "-w", "2", "-f"});
    ASSERT_EQ(run.exit, 0) << format << run.err;
    if (!before.empty()) {
      EXPECT_NE(run.out.find("  replaced " + before + ", "), std::string::npos) << run.out;
    }
    before = format;
  }
}

// DeepSpeed's own converter repeats buffers, frozen and tied parameters, which nobody reads.
TEST(ConvertForce, ReplacesAUniversalCheckpointOfDeepSpeed) {
  const ScratchDirectory scratch;
  const std::string out = scratch / "out";
  fs::copy(fs::path(EBB_FIXTURES) / "deepspeed/universal_z1_adamw/data", out,
           fs::copy_options::recursive);
  const Outcome run = convert({kSource, out, "-t", "dcp", "-f"});
  EXPECT_EQ(run.exit, 0) << run.err;
  EXPECT_NE(run.out.find("  replaced deepspeed-universal, "), std::string::npos) << run.out;
}

TEST(ConvertTakes, AnEmptyDirectoryWithoutForce) {
  const ScratchDirectory scratch;
  const std::string out = scratch / "out.safetensors";
  fs::create_directory(out);
  const Outcome run = convert({kSource, out, "--weights"});
  EXPECT_EQ(run.exit, 0) << run.err;
  EXPECT_NE(run.out.find("out.safetensors is a directory; what it holds begins with model."),
            std::string::npos)
      << run.out;
  EXPECT_EQ(convert({kSource, ".", "--weights", "-f"}).exit, 2);
}

// In a folder that several people use, somebody else's attempt is none of our business.
TEST(ConvertTakes, AFolderWithALockThatMayNotBeOpened) {
  const ScratchDirectory scratch;
  const std::string lock = scratch / ".x.ebb-lock-0123456789abcdef";
  fs::create_symlink("nowhere", lock);
  const Outcome run = convert({kSource, scratch / "x", "--weights"});
  EXPECT_EQ(run.exit, 0) << run.err;
  EXPECT_TRUE(fs::is_symlink(lock));
}

TEST(ConvertTo, GuessesWhatAFormatWasMeantToBe) {
  for (const auto& [typed, meant] : {std::pair("DCP", "dcp"),
                                     {"universal", "deepspeed-universal"},
                                     {"fsdp2", "dcp"},
                                     {"HF", "transformers"},
                                     {"pt", "torch"}}) {
    const Outcome run = convert({kSource, "nowhere", "--to", typed});
    EXPECT_EQ(run.exit, 2);
    EXPECT_NE(run.err.find("did you mean --to " + std::string(meant) + "?"), std::string::npos)
        << run.err;
  }
}

}  // namespace
}  // namespace ebb
