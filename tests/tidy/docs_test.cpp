// Pages and build files say what is there: links, acceptance rows, the header guide, source lists.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <regex>
#include <set>

#include "tests/tidy/source_tree.h"

namespace ebb::tidy {
namespace {

namespace fs = std::filesystem;

TEST(Tidy, EverySourceIsListedInACMakeLists) {
  Offenders offenders;
  for (const SourceFile& file : source_files()) {
    if (file.extension() != ".cpp" && file.extension() != ".cu") continue;
    bool listed = false;
    fs::path folder = file.path;
    while (!listed && folder.has_relative_path()) {
      folder = folder.parent_path();
      const SourceFile* build = find_file((folder / "CMakeLists.txt").generic_string());
      if (build == nullptr) continue;
      const std::string name = fs::path(file.path).lexically_relative(folder).generic_string();
      const std::regex token("(^|[\\s(\"/])" + std::regex_replace(name, std::regex("\\."), "\\.") +
                             "($|[\\s)\"])");
      listed = std::regex_search(build->text, token);
    }
    if (!listed) offenders.add(file, 1, "is in no CMakeLists.txt: nobody compiles it");
  }
  EXPECT_TRUE(offenders.none());
}

TEST(Tidy, EveryRelativeLinkOfADocumentResolves) {
  const std::regex link("\\]\\(([^)\\s#]+)(#[^)]*)?\\)");
  Offenders offenders;
  for (const SourceFile& file : source_files()) {
    if (file.extension() != ".md") continue;
    for (std::size_t i = 0; i < file.lines.size(); ++i) {
      const std::string& line = file.lines[i];
      for (std::sregex_iterator it(line.begin(), line.end(), link), end; it != end; ++it) {
        const std::string target = (*it)[1];
        if (target.find(':') != std::string::npos) continue;  // http:, mailto:
        const fs::path path = root() / fs::path(file.path).parent_path() / target;
        if (!fs::exists(path)) offenders.add(file, i + 1, target);
      }
    }
  }
  EXPECT_TRUE(offenders.none());
}

std::set<std::string> names_of_tests() {
  const std::regex declared("^TEST(_F|_P)?\\(\\s*(\\w+),\\s*(\\w+)\\s*\\)", std::regex::multiline);
  std::set<std::string> names;
  for (const SourceFile& file : source_files()) {
    if (file.top() != "tests" || file.extension() != ".cpp") continue;
    for (std::sregex_iterator it(file.text.begin(), file.text.end(), declared), end; it != end;
         ++it) {
      names.insert(it->str(2) + "." + it->str(3));
    }
  }
  return names;
}

// Row identifier -> its last column. `letters` are those that rows begin with.
std::map<std::string, std::string> rows_of(const SourceFile& page, const std::string& letters,
                                           Offenders& offenders) {
  const std::regex row("^\\| ((?:" + letters + ")\\d+) \\|.*\\| ([^|]+) \\|$");
  std::map<std::string, std::string> rows;
  for (std::size_t i = 0; i < page.lines.size(); ++i) {
    std::smatch match;
    if (!std::regex_match(page.lines[i], match, row)) continue;
    if (!rows.emplace(match[1], match[2]).second) offenders.add(page, i + 1, "row given twice");
  }
  return rows;
}

void check_proofs(const std::map<std::string, std::string>& rows, Offenders& offenders) {
  const auto tests = names_of_tests();
  const std::regex name("`(\\w+\\.\\w+)`");
  for (const auto& [id, proof] : rows) {
    std::size_t named = 0;
    for (std::sregex_iterator it(proof.begin(), proof.end(), name), end; it != end; ++it, ++named) {
      if (!tests.contains(it->str(1))) offenders.add(id + ": no test " + it->str(1));
    }
    if (named == 0 && !proof.starts_with("open")) offenders.add(id + ": " + proof);
  }
}

TEST(Tidy, EveryAcceptanceRowNamesATestOrSaysOpen) {
  const SourceFile* page = find_file("tests/acceptance.md");
  ASSERT_NE(page, nullptr);
  Offenders offenders;
  const auto rows = rows_of(*page, "A|B|C", offenders);
  check_proofs(rows, offenders);
  for (const auto& [letter, count] : std::map<char, int>{{'A', 23}, {'B', 30}, {'C', 18}}) {
    for (int i = 1; i <= count; ++i) {
      const std::string id = letter + std::to_string(i);
      if (!rows.contains(id)) offenders.add(id + ": missing");
    }
  }
  EXPECT_TRUE(offenders.none());
}

TEST(Tidy, EveryWayToBreakInputNamesATestOrSaysOpen) {
  const SourceFile* page = find_file("tests/malformed.md");
  ASSERT_NE(page, nullptr);
  Offenders offenders;
  const auto rows = rows_of(*page, "P|Z|R|DS|D|S|H|M|F|TC|C", offenders);
  check_proofs(rows, offenders);
  for (const auto& [letters, count] : std::map<std::string, int>{{"P", 32},
                                                                 {"Z", 14},
                                                                 {"R", 9},
                                                                 {"D", 16},
                                                                 {"S", 12},
                                                                 {"H", 9},
                                                                 {"DS", 9},
                                                                 {"M", 5},
                                                                 {"F", 6},
                                                                 {"TC", 6},
                                                                 {"C", 10}}) {
    for (int i = 1; i <= count; ++i) {
      const std::string id = letters + (i < 10 ? "0" : "") + std::to_string(i);
      if (!rows.contains(id)) offenders.add(id + ": missing");
    }
  }
  EXPECT_TRUE(offenders.none());
}

// What a program finds in ebb.error/1, and in Python as `code`.
TEST(Tidy, EveryErrorCodeHasItsLineOnThePageOfErrors) {
  const SourceFile *codes = find_file("formats/core/error.h"), *page = find_file("docs/errors.md");
  ASSERT_TRUE(codes != nullptr && page != nullptr);
  const std::regex code("^  (\\w+),? +// .*");
  Offenders offenders;
  std::size_t found = 0;
  for (const std::string& line : codes->lines) {
    std::smatch match;
    if (line.starts_with("};")) break;
    if (!std::regex_match(line, match, code)) continue;
    ++found;
    const std::string row = "| `" + match[1].str() + "` |";
    if (std::ranges::none_of(page->lines,
                             [&](const std::string& one) { return one.starts_with(row); }))
      offenders.add("docs/errors.md has no row " + row);
  }
  EXPECT_EQ(found, 14u);
  EXPECT_TRUE(offenders.none());
}

// Prose wider than a page is read by nobody. Tables, code and where links lead may be wider, and a
// line that is one word of code; `python3 tests/docs/wrap.py PAGE` fills paragraphs anew.
TEST(Tidy, ProseOfThePagesIsAtMost110ColumnsWide) {
  const std::regex wide_by_nature("^ *(\\||```|!\\[|<!--|`[^`]*`\\W?$).*"),
      target("\\]\\([^)]*\\)");
  Offenders offenders;
  for (const SourceFile& file : source_files()) {
    if (file.extension() != ".md" || !(file.top() == "docs" || file.path == "README.md")) continue;
    bool fenced = false, indented = false, after_gap = true;
    for (std::size_t i = 0; i < file.lines.size(); ++i) {
      const std::string& line = file.lines[i];
      const std::size_t begin = std::min(line.find_first_not_of(' '), line.size());
      if (line.compare(begin, 3, "```") == 0) fenced = !fenced;
      indented = line.starts_with("    ") && (indented || after_gap);
      after_gap = line.empty() || line.starts_with("#") || (indented && after_gap);
      if (fenced || indented || std::regex_match(line, wide_by_nature)) continue;
      const std::size_t columns = columns_of(std::regex_replace(line, target, "]()"));
      if (columns > 110) offenders.add(file, i + 1, std::to_string(columns) + " columns");
    }
  }
  EXPECT_TRUE(offenders.none());
}

// A header that the example includes is part of the public face.
TEST(Tidy, TheHeaderGuideListsEveryHeaderTheExampleUses) {
  const SourceFile* guide = find_file("docs/architecture.md");
  ASSERT_NE(guide, nullptr);
  Offenders offenders;
  for (const SourceFile& file : source_files()) {
    if (file.top() != "examples") continue;
    for (const Include& include : includes_of(file)) {
      const bool public_face = include.quoted && !include.path.starts_with("examples/");
      if (public_face && guide->text.find(include.file) == std::string::npos) {
        offenders.add(file, include.line, include.path);
      }
    }
  }
  EXPECT_TRUE(offenders.none());
}

TEST(Tidy, TheEmbeddingPagesQuoteTheExamplesWhole) {
  const std::map<std::string, std::string> quoted = {
      {"examples/inspect_minimal/main.cpp", "docs/embedding/linking.md"},
      {"examples/muon_minimal/main.cpp", "docs/embedding/muon.md"},
      {"examples/swap_minimal/main.cpp", "docs/embedding/own-optimizer.md"}};
  for (const auto& [name, where] : quoted) {
    const SourceFile* page = find_file(where);
    ASSERT_NE(page, nullptr) << where;
    const SourceFile* example = find_file(name);
    ASSERT_NE(example, nullptr) << name;
    EXPECT_NE(page->text.find("```cpp\n" + example->text + "```\n"), std::string::npos) << name;
    EXPECT_LE(example->lines.size(), 60u) << name;
  }
}

TEST(Tidy, TheMapNamesEveryFolderWithSources) {
  const SourceFile* map = find_file("docs/architecture.md");
  ASSERT_NE(map, nullptr);
  Offenders offenders;
  for (const SourceFile& file : source_files()) {
    if (!file.is_cpp() || file.top() == "tests") continue;
    const std::string folder = fs::path(file.path).parent_path().generic_string() + "/";
    if (map->text.find(folder) == std::string::npos) offenders.add(file, 1, folder);
  }
  EXPECT_TRUE(offenders.none());
}

}  // namespace
}  // namespace ebb::tidy
