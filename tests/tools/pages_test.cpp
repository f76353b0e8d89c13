// What the pages for users show is what the tools print: each block that begins with `$ command` is
// run, in a folder where the fixtures lie and results may be made.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <vector>

#include "tests/support/program.h"

namespace ebb {
namespace {

namespace fs = std::filesystem;

struct Shown {
  std::string command, output;
};

// Indented by four spaces: a line "$ command", then what it prints.
std::vector<Shown> shown_in(const fs::path& page) {
  std::vector<Shown> all;
  std::ifstream in(page);
  std::string blank;  // lines inside of a block, if it goes on
  bool inside = false;
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("    $ ")) {
      all.push_back({line.substr(6), ""});
      inside = true;
    } else if (inside && line.starts_with("    ")) {
      all.back().output += blank + line.substr(4) + "\n";
    } else if (inside && line.empty()) {
      blank += "\n";
      continue;
    } else {
      inside = false;
    }
    blank.clear();
  }
  return all;
}

// How long it took, and how fast that was, is another one each time.
std::string without_times(const std::string& text) {
  static const std::regex kTimes(R"(in [0-9.]+ s( \([0-9.]+ [kMG]B/s\))?)");
  return std::regex_replace(text, kTimes, "in TIME");
}

class Pages : public testing::TestWithParam<const char*> {
 protected:
  Pages() {
    for (const fs::directory_entry& entry : fs::directory_iterator(EBB_FIXTURES))
      if (entry.is_directory())
        fs::create_directory_symlink(entry.path(), folder_ / entry.path().filename().string());
  }
  std::string said_by(const std::string& command) const {
    const std::string line =
        "cd '" + folder_.path() + "' && PATH='" EBB_BIN "':$PATH && " + command;
    return test_support::run_program("/bin/sh", {"-c", "{ " + line + "; } 2>&1"}).out;
  }
  test_support::ScratchDirectory folder_;
};

TEST_P(Pages, ShowWhatTheToolsPrint) {
  const auto shown = shown_in(fs::path(EBB_FIXTURES) / "../.." / GetParam());
  EXPECT_FALSE(shown.empty());
  for (const Shown& one : shown)
    EXPECT_EQ(without_times(said_by(one.command)), without_times(one.output)) << one.command;
}

INSTANTIATE_TEST_SUITE_P(Of, Pages, testing::Values("README.md", "docs/from-pytorch.md"));

}  // namespace
}  // namespace ebb
