// The project's own text files, read once, for the rules in this folder.
// Fixtures, build folders and what git ignores are left out by walking known folders only.
#pragma once

#include <cstddef>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include <gtest/gtest.h>

namespace ebb::tidy {

struct SourceFile {
  std::string path;  // from the repository's root, with '/'
  std::string text;
  std::vector<std::string> lines;
  // C++ only: `lines` with comments and the contents of literals blanked, columns kept.
  std::vector<std::string> code;

  std::string top() const;        // "formats" of "formats/core/error.h"
  std::string extension() const;  // ".h"
  bool is_header() const { return extension() == ".h" || extension() == ".cuh"; }
  bool is_cuda() const { return extension() == ".cu" || extension() == ".cuh"; }
  bool is_cpp() const { return is_header() || is_cuda() || extension() == ".cpp"; }
  bool is_for_c() const;   // ebb.h and its parts, which lie side by side where they are installed
  bool is_script() const;  // bash, CMake, the Python package and its tests
};

const std::filesystem::path& root();
const std::vector<SourceFile>& source_files();
const SourceFile* find_file(std::string_view path);  // nullptr: no such file

std::vector<std::string> split_lines(std::string_view text);
std::size_t columns_of(const std::string& line);  // that a reader counts
// Comments, string and character literals become spaces; raw strings too. Line count is kept.
std::string blank_comments_and_literals(std::string_view text);

struct Function {
  std::size_t first_line = 0;  // from 1
  std::size_t line_count = 0;
};
// Outermost brace bodies that follow a parameter list. `code` is blanked.
std::vector<Function> find_functions(const std::vector<std::string>& code);

struct Include {
  std::size_t line = 0;  // from 1
  bool quoted = false;
  std::string path;
  std::string file;  // quoted: where it lies, from the repository's root
};
std::vector<Include> includes_of(const SourceFile& file);

// Collects offenders and prints them one a line.
class Offenders {
 public:
  void add(const SourceFile& file, std::size_t line, std::string_view what);
  void add(std::string_view what);
  testing::AssertionResult none() const;

 private:
  std::string list_;
};

}  // namespace ebb::tidy
