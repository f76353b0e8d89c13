// A source that its writer goes on with, and a destination that two want.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <thread>

#include "tests/support/program.h"

namespace ebb {
namespace {

namespace fs = std::filesystem;
using test_support::Outcome;
using test_support::run_program;
using test_support::RunningProgram;
using test_support::ScratchDirectory;

std::string made(const ScratchDirectory& scratch, const std::string& format,
                 const std::string& bytes) {
  const std::string source = scratch / format;
  const Outcome run = run_program("ebb-make-checkpoint", {source, format, bytes, "1"});
  EXPECT_EQ(run.exit, 0) << run.err;
  return source;
}

fs::path largest_file(const std::string& folder) {
  fs::path largest;
  std::uintmax_t most = 0;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file() && entry.file_size() > most)
      most = entry.file_size(), largest = entry.path();
  return largest;
}

// Writes over the same bytes in place, again and again, as a trainer does that keeps one "latest".
class Overwriter {
 public:
  explicit Overwriter(fs::path file) : file_(std::move(file)) {
    thread_ = std::thread([this] {
      const auto at = static_cast<std::streamoff>(fs::file_size(file_) / 2);
      while (!done_) {
        std::fstream over(file_, std::ios::in | std::ios::out | std::ios::binary);
        char byte = 0;
        over.seekg(at).get(byte);
        over.seekp(at).put(byte);
        over.close();
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
    });
  }
  ~Overwriter() {
    done_ = true;
    thread_.join();
  }

 private:
  fs::path file_;
  std::atomic<bool> done_ = false;
  std::thread thread_;
};

class ASourceThatChanges : public testing::TestWithParam<const char*> {};

TEST_P(ASourceThatChanges, IsNoticedAndNothingIsPublished) {
  const ScratchDirectory scratch;
  const std::string source = made(scratch, GetParam(), "20000000"), out = scratch / "out";
  const fs::path file = largest_file(source);
  const std::string sentence = "the source changed while it was read: " + file.string();
  {
    const Overwriter writer(file);
    for (const char* to : {"dcp", "safetensors", "torch"}) {
      const Outcome run = run_program("ckpt-convert", {source, out, "--to", to});
      EXPECT_EQ(run.exit, 2) << run.out;
      EXPECT_NE(run.err.find(sentence), std::string::npos) << run.err;
      EXPECT_FALSE(fs::exists(out));
    }
    for (const auto& mode : {std::vector<std::string>{"--verify"}, {"--diff", source}}) {
      std::vector<std::string> words = {source};
      words.insert(words.end(), mode.begin(), mode.end());
      const Outcome run = run_program("ckpt-inspect", words);
      EXPECT_EQ(run.exit, 2) << run.out;
      EXPECT_NE(run.err.find(sentence), std::string::npos) << run.err;
    }
  }
  EXPECT_EQ(run_program("ckpt-convert", {source, out, "--to", "dcp"}).exit, 0);
  EXPECT_EQ(run_program("ckpt-inspect", {source, "--verify"}).exit, 0);
}

INSTANTIATE_TEST_SUITE_P(Formats, ASourceThatChanges,
                         testing::Values("safetensors", "dcp", "torch"));

// What lies in the folder and is not read may change as it likes.
TEST(ASourceThatStays, IsNotDisturbedByWhatLiesBesideIt) {
  const ScratchDirectory scratch;
  const std::string source = made(scratch, "dcp", "2000000");
  std::ofstream(source + "/train.log") << "step 1\n";
  const Overwriter writer(source + "/train.log");
  const Outcome run = run_program("ckpt-convert", {source, scratch / "out", "--to", "dcp"});
  EXPECT_EQ(run.exit, 0) << run.err;
}

bool is_being_written(const std::string& parent) {
  for (const auto& entry : fs::directory_iterator(parent))
    if (entry.path().filename().string().starts_with(".out.ebb-new-")) return true;
  return false;
}

TEST(ADestination, ThatAnotherConversionIsWritingIsRefusedBeforeTheWork) {
  const ScratchDirectory scratch;
  const std::string source = made(scratch, "safetensors", "400000000"), out = scratch / "out";
  RunningProgram first("ckpt-convert", {source, out, "--to", "dcp"});
  for (int i = 0; i < 2000 && !is_being_written(scratch.path()); ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  ASSERT_TRUE(is_being_written(scratch.path()));
  first.signal(SIGSTOP);
  for (const char* force : {"-j2", "-f"}) {
    const Outcome second = run_program("ckpt-convert", {source, out, "--to", "dcp", force});
    EXPECT_EQ(second.exit, 2);
    EXPECT_NE(second.err.find("another process is writing it at this moment"), std::string::npos)
        << second.err;
    EXPECT_EQ(second.err.find(".ebb-"), std::string::npos) << second.err;
  }
  first.signal(SIGCONT);
  const Outcome run = first.wait();
  EXPECT_EQ(run.exit, 0) << run.err;
}

}  // namespace
}  // namespace ebb
