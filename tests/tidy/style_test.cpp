// Sizes and forbidden words.
#include <gtest/gtest.h>

#include <algorithm>
#include <iterator>
#include <regex>
#include <utility>

#include "tests/tidy/source_tree.h"

namespace ebb::tidy {
namespace {

constexpr std::size_t kFileLines = 500;
constexpr std::size_t kFunctionLines = 70;
constexpr std::size_t kLineColumns = 100;
constexpr std::size_t kDataMembers = 15;

// `pattern` in the code (not in comments or literals) of every C++ file that `wanted` accepts.
template <typename Wanted>
Offenders code_matches(const char* pattern, Wanted wanted) {
  const std::regex expression(pattern);
  Offenders offenders;
  for (const SourceFile& file : source_files()) {
    if (!file.is_cpp() || !wanted(file)) continue;
    for (std::size_t i = 0; i < file.code.size(); ++i) {
      if (std::regex_search(file.code[i], expression)) offenders.add(file, i + 1, file.lines[i]);
    }
  }
  return offenders;
}

bool everywhere(const SourceFile&) { return true; }

// Data members that a declaration makes, which have names that end with `_`.
std::size_t members_in(std::string declaration) {
  static const std::regex words("^ *(using|friend|return|static|enum|template)\\b");
  static const std::regex guards("EBB_\\w+\\(\\w+\\)"), types("<.*>");
  static const std::regex values("=[^,;]*|\\{[^}]*\\}"), names("\\w_ *[,;]");
  if (std::regex_search(declaration, words)) return 0;
  for (const std::regex& part : {guards, types, values})
    declaration = std::regex_replace(declaration, part, "");
  if (declaration.find('(') != std::string::npos) return 0;
  const std::sregex_iterator first(declaration.begin(), declaration.end(), names);
  return static_cast<std::size_t>(std::distance(first, {}));
}

std::size_t indent_of(const std::string& line) { return line.find_first_not_of(' '); }

// Of the class whose head is on a line, as clang-format indents it; not those of classes inside it.
std::size_t members_of(const std::vector<std::string>& code, std::size_t head) {
  const std::size_t indent = indent_of(code[head]);
  std::size_t members = 0;
  std::string declaration;
  for (std::size_t i = head + 1; i < code.size() && indent_of(code[i]) != indent; ++i) {
    const std::string line = code[i].substr(0, code[i].find_last_not_of(' ') + 1);
    if (indent_of(line) == indent + 2)
      declaration.clear();
    else if (declaration.empty())
      continue;
    declaration += line;
    if (line.ends_with(';') || line.ends_with('{'))
      members += members_in(std::exchange(declaration, ""));
  }
  return members;
}

// `pattern` in any line, comments included, of every file of ours.
Offenders text_matches(const std::string& pattern) {
  const std::regex expression(pattern);
  Offenders offenders;
  for (const SourceFile& file : source_files()) {
    for (std::size_t i = 0; i < file.lines.size(); ++i) {
      if (std::regex_search(file.lines[i], expression)) offenders.add(file, i + 1, file.lines[i]);
    }
  }
  return offenders;
}

TEST(Tidy, FilesHaveAtMost500Lines) {
  Offenders offenders;
  for (const SourceFile& file : source_files()) {
    if (!file.is_cpp() && !file.is_script()) continue;
    if (file.lines.size() <= kFileLines) continue;
    offenders.add(file, file.lines.size(), "which two things does it do?");
  }
  EXPECT_TRUE(offenders.none());
}

TEST(Tidy, FunctionsHaveAtMost70Lines) {
  Offenders offenders;
  for (const SourceFile& file : source_files()) {
    for (const Function& function : find_functions(file.code)) {
      if (function.line_count <= kFunctionLines) continue;
      offenders.add(file, function.first_line, std::to_string(function.line_count) + " lines");
    }
  }
  EXPECT_TRUE(offenders.none());
}

TEST(Tidy, ClassesHaveAtMost15DataMembers) {
  const std::regex head("^ *(class|struct) [^;]*\\{$");
  Offenders offenders;
  for (const SourceFile& file : source_files()) {
    if (file.top() != "libmuon" && file.top() != "libswap") continue;
    for (std::size_t i = 0; i < file.code.size(); ++i) {
      if (!std::regex_match(file.code[i], head)) continue;
      const std::size_t members = members_of(file.code, i);
      if (members > kDataMembers) offenders.add(file, i + 1, std::to_string(members) + " members");
    }
  }
  EXPECT_TRUE(offenders.none());
}

TEST(Tidy, LinesHaveAtMost100Columns) {
  Offenders offenders;
  for (const SourceFile& file : source_files()) {
    if (!file.is_cpp() && !file.is_script()) continue;
    for (std::size_t i = 0; i < file.lines.size(); ++i) {
      const std::size_t columns = columns_of(file.lines[i]);
      if (columns > kLineColumns) offenders.add(file, i + 1, std::to_string(columns) + " columns");
    }
  }
  EXPECT_TRUE(offenders.none());
}

// C's comments are its own, and it asks whether C++ reads it.
TEST(Tidy, HeadersStartWithAComment) {
  Offenders offenders;
  for (const SourceFile& file : source_files()) {
    if (!file.is_header()) continue;
    const std::string_view begin = file.is_for_c() ? "/* " : "// ";
    const bool comment = !file.lines.empty() && file.lines[0].starts_with(begin);
    if (!comment) offenders.add(file, 1, "says nothing about itself");
  }
  EXPECT_TRUE(offenders.none());
}

TEST(Tidy, HeadersHavePragmaOnceAsFirstDirective) {
  Offenders offenders;
  for (const SourceFile& file : source_files()) {
    if (!file.is_header() || file.is_for_c()) continue;
    const auto first = std::find_if(file.lines.begin(), file.lines.end(),
                                    [](const std::string& line) { return line.starts_with("#"); });
    const bool once = first != file.lines.end() && *first == "#pragma once";
    if (!once) offenders.add(file, 1, "no #pragma once, or something before it");
  }
  EXPECT_TRUE(offenders.none());
}

TEST(Tidy, HeadersHaveNoConditionalCode) {
  EXPECT_TRUE(code_matches("^\\s*#\\s*(if|ifdef|ifndef)\\b", [](const SourceFile& file) {
                // What only clang understands.
                return file.is_header() && file.path != "libswap/sys/mutex.h" && !file.is_for_c();
              }).none());
}

TEST(Tidy, BrokenInvariantsUseCheckNotAssert) {
  EXPECT_TRUE(code_matches("(^|[^_\\w])assert\\s*\\(", everywhere).none());
}

TEST(Tidy, NothingIsThrown) {
  EXPECT_TRUE(code_matches("\\bthrow\\b", [](const SourceFile& file) {
                // An operator new has no other way to say that there is no memory.
                return file.path != "tests/bindings/c/failing_new.cpp";
              }).none());
}

// start_thread answers an error and blocks signals; a std::thread of its own does neither.
TEST(Tidy, ThreadsStartInOnePlace) {
  const auto elsewhere = [](const SourceFile& file) {
    // A minimal example is a program of somebody else, who starts threads as they do.
    const bool consumer = file.path.find("_minimal/") != std::string::npos;
    return file.top() != "tests" && !consumer && file.path != "libswap/sys/thread.h";
  };
  EXPECT_TRUE(
      code_matches("\\bstd::(jthread|async)\\b|\\bstd::thread( \\w+)?[({]", elsewhere).none());
  // A vector of threads that makes its own from a callable.
  Offenders offenders;
  for (const SourceFile& file : source_files()) {
    if (!file.is_cpp() || !elsewhere(file)) continue;
    const bool holds = std::ranges::any_of(file.code, [](const std::string& line) {
      return line.find("vector<std::thread>") != line.npos;
    });
    for (std::size_t i = 0; holds && i < file.code.size(); ++i)
      if (std::regex_search(file.code[i], std::regex("emplace_back\\(\\[")))
        offenders.add(file, i + 1, file.lines[i]);
  }
  EXPECT_TRUE(offenders.none());
}

// What those of mutex.h guard is known to clang's thread safety analysis.
TEST(Tidy, MutexesAreThoseThatTheAnalysisKnows) {
  const auto product = [](const SourceFile& file) {
    return (file.top() == "plugins" || file.top() == "formats" || file.top() == "libswap" ||
            file.top() == "libmuon" || file.top() == "tools") &&
           file.path != "libswap/sys/mutex.h";
  };
  EXPECT_TRUE(code_matches("\\bstd::((shared_|recursive_|timed_)*mutex|(lock_guard|unique_lock|"
                           "scoped_lock|shared_lock|condition_variable(_any)?))\\b",
                           product)
                  .none());
}

TEST(Tidy, NoUsingNamespace) {
  EXPECT_TRUE(code_matches("\\busing\\s+namespace\\b", everywhere).none());
}

TEST(Tidy, OnlyToolsReadTheEnvironment) {
  EXPECT_TRUE(code_matches("\\b(secure_)?getenv\\b", [](const SourceFile& file) {
                return file.top() != "tools" && file.top() != "tests";
              }).none());
}

TEST(Tidy, FormatsOpensAndPrintsNothing) {
  EXPECT_TRUE(code_matches("\\b(fopen|printf|fprintf|puts|fputs|system|popen)\\s*\\(",
                           [](const SourceFile& file) {
                             // CHECK says why before it aborts.
                             return file.top() == "formats" &&
                                    file.path != "formats/core/check.cpp";
                           })
                  .none());
}

// The words below are put together so that this file does not offend itself.
TEST(Tidy, NothingIsLeftForLater) {
  EXPECT_TRUE(text_matches(std::string("\\b(TO") + "DO|FIX" + "ME|XX" + "X)\\b").none());
}

TEST(Tidy, NoPathOfADevelopersMachine) {
  EXPECT_TRUE(text_matches(std::string("/wo") + "rk/|/ho" + "me/[a-z]|/tmp/ba" + "sh_jobs").none());
}

}  // namespace
}  // namespace ebb::tidy
