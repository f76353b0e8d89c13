#include "examples/gpt/text.h"

#include <gtest/gtest.h>

#include <unistd.h>
#include <algorithm>

#include <filesystem>
#include <fstream>

#include "ebb/libswap/sys/posix_backend.h"

namespace ebb::gpt {
namespace {

namespace fs = std::filesystem;

class Text : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::temp_directory_path() / ("gpt_text_" + std::to_string(::getpid()));
    fs::create_directory(folder_);
    auto backend = libswap::make_threads_backend(1);
    EBB_CHECK(backend.has_value());
    auto io = libswap::IoQueue::start(std::move(*backend), {});
    EBB_CHECK(io.has_value());
    io_ = std::move(*io);
  }
  void TearDown() override { fs::remove_all(folder_); }

  fs::path write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / name, std::ios::binary) << text;
    return folder_ / name;
  }
  static std::string train_text(const Corpus& corpus) {
    return {corpus.train.begin(), corpus.train.end()};
  }

  fs::path folder_;
  std::unique_ptr<libswap::IoQueue> io_;
};

TEST_F(Text, TheLastTenthOfAFileIsHeldOut) {
  std::string text;
  for (int i = 0; i < 1000; ++i) text += static_cast<char>('a' + i % 26);
  const auto corpus = load_text(*io_, write("story", text), 17);
  ASSERT_TRUE(corpus) << corpus.error().message;
  EXPECT_EQ(train_text(*corpus), text.substr(0, 900));
  EXPECT_EQ(std::string(corpus->held_out.begin(), corpus->held_out.end()), text.substr(900));
}

TEST_F(Text, AMissingFileIsNamedWithTheReason) {
  const auto corpus = load_text(*io_, folder_ / "nothing", 17);
  ASSERT_FALSE(corpus);
  EXPECT_NE(corpus.error().message.find((folder_ / "nothing").string()), std::string::npos);
  EXPECT_NE(corpus.error().message.find("No such file"), std::string::npos);
  EXPECT_NE(corpus.error().hint.find("--text"), std::string::npos);
}

TEST_F(Text, AFolderIsNoText) { EXPECT_FALSE(load_text(*io_, folder_, 17)); }

TEST_F(Text, ATooShortFileIsRefusedWithTheMinimumThatWorks) {
  const auto corpus = load_text(*io_, write("short", std::string(377, 'x')), 17);
  ASSERT_FALSE(corpus);
  EXPECT_EQ(corpus.error().message,
            (folder_ / "short").string() + ": 377 bytes of text are too few, the minimum is 378");
  EXPECT_TRUE(load_text(*io_, write("enough", std::string(378, 'x')), 17));
}

TEST_F(Text, LicencesAreReadInNameOrderAndHoldTwoOutWhole) {
  write("Zlib", std::string(200, 'z'));
  write("BSD", std::string(200, 'b'));
  write("Apache-2.0", std::string(50, 'a'));
  write("CC0-1.0", std::string(60, 'c'));
  const auto corpus = load_licences(*io_, folder_, 17);
  ASSERT_TRUE(corpus) << corpus.error().message;
  EXPECT_EQ(train_text(*corpus), std::string(200, 'b') + std::string(200, 'z'));
  EXPECT_EQ(corpus->held_out.size(), 110u);
  EXPECT_EQ(corpus->description, "2 licence texts, 0 kB; held out: Apache-2.0 and CC0-1.0, 0 kB");
}

TEST_F(Text, ALinkToATextDoesNotBringItTwice) {
  write("GPL-3", std::string(500, 'g'));
  write("Apache-2.0", std::string(50, 'a'));
  fs::create_symlink("GPL-3", folder_ / "GPL");
  fs::create_symlink("nowhere", folder_ / "dangling");
  const auto corpus = load_licences(*io_, folder_, 17);
  ASSERT_TRUE(corpus) << corpus.error().message;
  EXPECT_EQ(corpus->train.size(), 500u);
}

TEST_F(Text, WithoutLicencesTheMessageAsksForAText) {
  const auto corpus = load_licences(*io_, folder_, 17);
  ASSERT_FALSE(corpus);
  EXPECT_EQ(corpus.error().message,
            "the licence texts are too short: 0 bytes to train on, 0 held out (Apache-2.0, "
            "CC0-1.0); the minimum is 340 and 17");
  EXPECT_EQ(corpus.error().hint, "give a text with --text FILE");
}

}  // namespace
}  // namespace ebb::gpt
