// The seeded faults of tests/mutants still have a place: the text that each replaces occurs once,
// and the tests that are to see it are there. Whether they see it is what `./dev mutants` tries.
#include <regex>

#include "tests/tidy/source_tree.h"

namespace ebb::tidy {
namespace {

struct Fault {
  const SourceFile* list = nullptr;
  std::size_t line = 0;  // from 1
  std::string file, filter, old_text;
};

std::vector<Fault> faults_of(const SourceFile& list) {
  std::vector<Fault> faults;
  for (std::size_t i = 0; i < list.lines.size(); ++i) {
    const std::string& line = list.lines[i];
    if (line.starts_with("= ")) faults.push_back({&list, i + 1, "", "", "\n"});
    if (faults.empty()) continue;
    Fault& fault = faults.back();
    if (line.starts_with("file ")) fault.file = line.substr(5);
    if (line.starts_with("test ")) fault.filter = line.substr(line.find(' ', 5) + 1);
    if (line == "-" || line.starts_with("- "))
      fault.old_text += line.substr(line.size() < 2 ? 1 : 2) + "\n";
  }
  return faults;
}

std::size_t times(const std::string& text, const std::string& part) {
  std::size_t count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + 1))
    ++count;
  return count;
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

TEST(Tidy, EverySeededFaultHasItsPlace) {
  Offenders offenders;
  std::size_t faults = 0;
  for (const SourceFile& list : source_files()) {
    if (!list.path.starts_with("tests/mutants/") || list.extension() != ".txt") continue;
    for (const Fault& fault : faults_of(list)) {
      ++faults;
      const SourceFile* const file = find_file(fault.file);
      const std::size_t places = file == nullptr ? 0 : times("\n" + file->text, fault.old_text);
      if (places != 1)
        offenders.add(list, fault.line,
                      "its old text is " + std::to_string(places) + " times in " + fault.file);
      if (const std::string missing = unmatched(fault.filter); !missing.empty())
        offenders.add(list, fault.line, "no test is called " + missing);
    }
  }
  EXPECT_GT(faults, 200u);
  EXPECT_TRUE(offenders.none());
}

}  // namespace
}  // namespace ebb::tidy
