// What an error calls things, in C: no name of C++ that a caller of ebb.h could meet is left.
#include "bindings/c/names.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>
#include <set>
#include <sstream>

namespace ebb::c {
namespace {

namespace fs = std::filesystem;

// Texts of sources, where those that stand side by side are one; not those of includes and checks.
std::vector<std::string> texts_of(const fs::path& file) {
  std::ifstream in(file);
  std::ostringstream all;
  for (std::string line; std::getline(in, line);)
    if (line.find("#include") == line.npos && line.find("EBB_CHECK") == line.npos &&
        line.substr(0, line.find_first_not_of(' ') + 2).find("//") == line.npos)
      all << line << '\n';
  const std::string source = all.str();
  static const std::regex text(R"re("((?:[^"\\\n]|\\.)*)"(?:\s*"((?:[^"\\\n]|\\.)*)")*)re");
  static const std::regex border(R"("\s*")");
  std::vector<std::string> found;
  for (std::sregex_iterator one(source.begin(), source.end(), text), end; one != end; ++one)
    found.push_back(std::regex_replace(one->str(), border, ""));
  return found;
}

TEST(Names, OfCppInErrorsHaveTheirsOfC) {
  EXPECT_EQ(in_c("continue_step() goes on, and gradient_ready takes the last of a step()"),
            "ebb_engine_continue() goes on, and ebb_engine_gradients() takes the last of a "
            "ebb_engine_step()");
  EXPECT_EQ(in_c("Begin::store_or_given and Begin::store resume"),
            "EBB_STORE_OR_GIVEN and EBB_STORE resume");
  // Of what C has not, or of what it checks before; of invariants and counters.
  const std::set<std::string> not_met = {"EngineConfig::bf16",
                                         "EngineConfig::partial_sums",
                                         "EngineConfig::gradients_on",
                                         "EngineConfig::weights_on",
                                         "SwapSpaceConfig::device",
                                         "Tier::host",
                                         "open()",
                                         "for_each()",
                                         "go_on()",
                                         "snapshot()"};
  static const std::regex cpp(R"(\b[A-Z]\w+(::\w+)+|\b(?!ebb_)[a-z_]+\(\))");
  std::size_t names = 0;
  for (const std::string folder : {"libmuon/plan", "libmuon/spec", "libmuon/step", "libswap"})
    for (const auto& entry : fs::recursive_directory_iterator(fs::path(EBB_SOURCE_DIR) / folder)) {
      if (entry.path().extension() != ".cpp" ||
          entry.path().string().find("testing") != std::string::npos)
        continue;
      for (const std::string& text : texts_of(entry.path())) {
        names += std::regex_search(text, cpp) ? 1 : 0;
        const std::string said = in_c(text);
        for (std::sregex_iterator one(said.begin(), said.end(), cpp), end; one != end; ++one)
          EXPECT_TRUE(not_met.contains(one->str())) << entry.path() << ": " << said;
      }
    }
  EXPECT_GT(names, 30u);
}

}  // namespace
}  // namespace ebb::c
