// gpt-train as a user runs it, and what lies in a checkpoint afterwards.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "tests/support/program.h"

namespace ebb::gpt {

class GptTrain : public testing::Test {
 protected:
  std::string swap(const std::string& name) const { return folder_ / name; }
  static test_support::Outcome train(std::vector<std::string> flags) {
    flags.push_back("--quiet");
    return test_support::run_program("gpt-train", small(std::move(flags)));
  }
  // One block and short sequences, unless it says otherwise: tests are not about the model.
  static std::vector<std::string> small(std::vector<std::string> flags) {
    for (const auto& [flag, value] : {std::pair("--layers", "1"), {"--sequence", "64"}})
      if (std::ranges::find(flags, flag) == flags.end()) flags.insert(flags.end(), {flag, value});
    return flags;
  }
  // The number behind these words of what a run said.
  static std::uint64_t number_behind(const std::string& words, const std::string& said) {
    const std::size_t at = said.find(words);
    EXPECT_NE(at, std::string::npos) << said;
    return at == std::string::npos ? 0 : std::stoull(said.substr(at + words.size()));
  }
  // Every tensor's name, state and sha256, as the tool gives them.
  static std::string content(const std::string& checkpoint) {
    const auto shown =
        test_support::run_program("ckpt-inspect", {checkpoint, "--tensors", "--digest", "--json"});
    EXPECT_EQ(shown.exit, 0) << shown.err;
    return shown.out.substr(0, shown.out.find("\"values\""));
  }

  test_support::ScratchDirectory folder_;
};

}  // namespace ebb::gpt
