// The scanner on known text: a rule that cannot see an offence would pass for ever.
#include <gtest/gtest.h>

#include "tests/tidy/source_tree.h"

namespace ebb::tidy {
namespace {

TEST(TidyScan, BlanksCommentsAndLiteralsAndKeepsColumns) {
  EXPECT_EQ(blank_comments_and_literals("a; // b\nc"), "a;     \nc");
  EXPECT_EQ(blank_comments_and_literals("a /* {\n} */ b"), "a     \n     b");
  EXPECT_EQ(blank_comments_and_literals(R"(f("{\"", '}', 1'000);)"), R"(f("   ", ' ', 1'000);)");
  EXPECT_EQ(blank_comments_and_literals("x(R\"(a\"{)\");"), "x(        );");
}

std::vector<std::size_t> lengths(std::string_view text) {
  std::vector<std::size_t> counts;
  const auto code = split_lines(blank_comments_and_literals(text));
  for (const Function& function : find_functions(code)) counts.push_back(function.line_count);
  return counts;
}

TEST(TidyScan, MeasuresFunctionsFromSignatureToClosingBrace) {
  EXPECT_EQ(lengths("int f() {\n  return 1;\n}\n"), std::vector<std::size_t>{3});
  EXPECT_EQ(
      lengths("namespace a {\nclass B {\n  int f(\n      int x) const {\n    if (x) {\n    }\n"
              "    return x;\n  }\n};\n}\n"),
      std::vector<std::size_t>{6});
  EXPECT_EQ(lengths("TEST(A, B) {\n  auto g = [] {\n  };\n}\n"), std::vector<std::size_t>{4});
}

TEST(TidyScan, TakesInitialiserBracesForPartOfTheConstructor) {
  EXPECT_EQ(lengths("A::A(int x)\n    : a_{x},\n      b_(x) {\n  go();\n}\n"),
            std::vector<std::size_t>{5});
}

TEST(TidyScan, DoesNotTakeTablesAndTypesForFunctions) {
  EXPECT_TRUE(lengths("struct A {\n  int x = 0;\n};\nconst int t[] = {\n  1,\n};\n"
                      "std::vector<int> v{1, 2};\nint f(int);\n")
                  .empty());
}

TEST(TidyScan, FindsTheProjectsFiles) {
  EXPECT_GT(source_files().size(), 50u);
  EXPECT_NE(find_file("formats/core/result.h"), nullptr);
  EXPECT_NE(find_file("CMakeLists.txt"), nullptr);
}

}  // namespace
}  // namespace ebb::tidy
