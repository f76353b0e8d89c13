// The seeded faults of tests/mutants: the files and tests that they name are there, and a fault is
// seeded where its lines stand now. Whether the tests see it is what `./dev mutants` tries.
#include <algorithm>
#include <fstream>
#include <iterator>
#include <regex>

#include "tests/support/program.h"
#include "tests/tidy/source_tree.h"

namespace ebb::tidy {
namespace {

struct Fault {
  const SourceFile* list = nullptr;
  std::size_t line = 0;  // from 1
  std::string file, program, filter;
};

std::vector<Fault> faults_of(const SourceFile& list) {
  std::vector<Fault> faults;
  for (std::size_t i = 0; i < list.lines.size(); ++i) {
    const std::string& line = list.lines[i];
    if (line.starts_with("= ")) faults.push_back({&list, i + 1, "", "", ""});
    if (faults.empty()) continue;
    Fault& fault = faults.back();
    if (line.starts_with("file ")) fault.file = line.substr(5);
    if (!line.starts_with("test ")) continue;
    const std::size_t blank = line.find(' ', 5);
    fault.program = line.substr(5, blank - 5);
    fault.filter = line.substr(blank + 1);
  }
  return faults;
}

bool is_built(const std::string& program) {
  const std::vector<SourceFile>& files = source_files();
  return std::any_of(files.begin(), files.end(), [&](const SourceFile& file) {
    return file.path.ends_with("/CMakeLists.txt") &&
           std::regex_search(file.text, std::regex("ebb_test\\(" + program + "\\b"));
  });
}

// The heads of all tests, one a line: Suite.Name
const std::string& test_names() {
  static const std::string names = [] {
    const std::regex head("^(TYPED_)?TEST(_F|_P)?\\((\\w+), *(\\w+)");
    std::string all;
    for (const SourceFile& file : source_files())
      if (file.top() == "tests" && file.is_cpp())
        for (const std::string& line : file.lines) {
          std::smatch match;
          if (std::regex_search(line, match, head)) all += "\n" + match.str(3) + "." + match.str(4);
        }
    return all;
  }();
  return names;
}

// Of a filter's patterns, one that no test matches; empty: there is none.
std::string unmatched(const std::string& filter) {
  const std::regex pattern("[^:]+");
  for (std::sregex_iterator it(filter.begin(), filter.end(), pattern), end; it != end; ++it) {
    std::string wanted = it->str();  // Instance/Suite/Number.Test/Number is called Suite.Test here
    if (const auto instance = wanted.find('/'); instance < wanted.find('.'))
      wanted = wanted.substr(instance + 1);
    wanted = std::regex_replace(wanted, std::regex("/\\w+(?=\\.|$)"), "");
    wanted = wanted.substr(0, wanted.find('*'));
    if (test_names().find("\n" + wanted) == std::string::npos) return it->str();
  }
  return "";
}

TEST(Mutants, NameFilesProgramsAndTestsThatAreThere) {
  Offenders offenders;
  std::size_t faults = 0;
  for (const SourceFile& list : source_files()) {
    if (!list.path.starts_with("tests/mutants/") || list.extension() != ".txt") continue;
    for (const Fault& fault : faults_of(list)) {
      ++faults;
      if (find_file(fault.file) == nullptr)
        offenders.add(list, fault.line, "there is no file " + fault.file);
      if (!is_built(fault.program))
        offenders.add(list, fault.line, "no test program is called " + fault.program);
      if (const std::string missing = unmatched(fault.filter); !missing.empty())
        offenders.add(list, fault.line, "no test is called " + missing);
    }
  }
  EXPECT_GT(faults, 200u);
  EXPECT_TRUE(offenders.none());
}

// Seeds into folder `lib` of a scratch directory.
class Seed : public testing::Test {
 protected:
  Seed() { std::filesystem::create_directory(folder_ / "lib"); }

  void write(const std::string& name, const std::string& text) {
    std::ofstream(folder_ / ("lib/" + name)) << text;
  }

  std::string text(const std::string& name) const {
    std::ifstream stream(folder_ / ("lib/" + name));
    return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  }

  test_support::Outcome seed(const std::string& old_text, const std::string& new_text) const {
    const std::string script = (root() / "tests/mutants/seed").string();
    return test_support::run_program(
        "/bin/sh", {"-c", "cd \"$0\" && exec \"$1\" lib/a.cpp \"$2\" \"$3\"", folder_.path(),
                    script, old_text, new_text});
  }

 private:
  test_support::ScratchDirectory folder_;
};

TEST_F(Seed, FindsLinesThatAreBrokenElsewhereNow) {
  write("a.cpp", "int f() {\n    return g(1,\n             2);\n}\n");
  EXPECT_EQ(seed("  return g(1, 2);\n", "  return 3;\n").out, "lib/a.cpp\n");
  EXPECT_EQ(text("a.cpp"), "int f() {\n  return 3;\n}\n");
}

TEST_F(Seed, FindsLinesThatWentToAnotherFile) {
  write("a.cpp", "int f();\n");
  write("b.cpp", "int f() {\n  return 1;\n}\n");
  EXPECT_EQ(seed("  return 1;\n", "  return 2;\n").out, "lib/b.cpp\n");
  EXPECT_EQ(text("b.cpp"), "int f() {\n  return 2;\n}\n");
}

TEST_F(Seed, LeavesLinesAloneThatStandInSeveralPlacesOrInNone) {
  const std::string twice = "int f() {\n  return 1;\n}\nint g() {\n  return 1;\n}\n";
  write("a.cpp", twice);
  EXPECT_NE(seed("  return 1;\n", "  return 2;\n").exit, 0);
  EXPECT_NE(seed("  return 3;\n", "  return 2;\n").exit, 0);
  EXPECT_EQ(text("a.cpp"), twice);
}

}  // namespace
}  // namespace ebb::tidy
