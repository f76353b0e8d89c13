// gpt-train as a user runs it, and what lies in a checkpoint afterwards.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/support/program.h"

namespace ebb::gpt {

class GptTrain : public testing::Test {
 protected:
  std::string swap(const std::string& name) const { return folder_ / name; }
  static test_support::Outcome train(std::vector<std::string> flags) {
    flags.push_back("--quiet");
    return test_support::run_program("gpt-train", flags);
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
