#include "tests/tidy/source_tree.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <sstream>

namespace ebb::tidy {
namespace {

namespace fs = std::filesystem;

std::string read_text(const fs::path& path) {
  std::ifstream stream(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

bool is_ours(const fs::path& path) {
  static const std::vector<std::string> extensions = {".h",  ".cpp", ".cu", ".cuh", ".cmake",
                                                      ".md", ".txt", ".py", ""};
  const std::string extension = path.extension().string();
  return std::find(extensions.begin(), extensions.end(), extension) != extensions.end();
}

void add_file(const fs::path& path, std::vector<SourceFile>& files) {
  SourceFile file;
  file.path = path.lexically_relative(root()).generic_string();
  file.text = read_text(path);
  file.lines = split_lines(file.text);
  if (file.is_cpp()) file.code = split_lines(blank_comments_and_literals(file.text));
  files.push_back(std::move(file));
}

std::vector<SourceFile> read_all() {
  std::vector<SourceFile> files;
  for (const char* name :
       {"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "CMakeLists.txt", "dev"}) {
    if (fs::exists(root() / name)) add_file(root() / name, files);
  }
  for (const char* folder : {".ci", "bindings", "cmake", "docs", "examples", "formats", "libmuon",
                             "libswap", "packaging", "plugins", "tests", "tools"}) {
    if (!fs::exists(root() / folder)) continue;
    fs::recursive_directory_iterator walk(root() / folder);
    for (auto it = begin(walk); it != end(walk); ++it) {
      if (it->path().filename() == "fixtures") it.disable_recursion_pending();
      if (it->is_regular_file() && is_ours(it->path())) add_file(it->path(), files);
    }
  }
  std::sort(files.begin(), files.end(),
            [](const SourceFile& a, const SourceFile& b) { return a.path < b.path; });
  return files;
}

}  // namespace

std::string SourceFile::top() const { return path.substr(0, path.find('/')); }

std::string SourceFile::extension() const { return fs::path(path).extension().string(); }

bool SourceFile::is_for_c() const { return is_header() && path.starts_with("bindings/c/ebb"); }

bool SourceFile::is_script() const {
  return path == "dev" || top() == ".ci" || extension() == ".cmake" ||
         fs::path(path).filename() == "CMakeLists.txt" ||
         (extension() == ".py" &&
          (path.starts_with("bindings/") || path.starts_with("tests/bindings/")));
}

const fs::path& root() {
  static const fs::path path = EBB_SOURCE_DIR;
  return path;
}

const std::vector<SourceFile>& source_files() {
  static const std::vector<SourceFile> files = read_all();
  return files;
}

const SourceFile* find_file(std::string_view path) {
  for (const SourceFile& file : source_files()) {
    if (file.path == path) return &file;
  }
  return nullptr;
}

std::size_t columns_of(const std::string& line) {
  // UTF-8 continuation bytes take no column.
  return static_cast<std::size_t>(std::count_if(line.begin(), line.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

std::vector<std::string> split_lines(std::string_view text) {
  std::vector<std::string> lines;
  std::istringstream stream{std::string(text)};
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

std::vector<Include> includes_of(const SourceFile& file) {
  std::vector<Include> includes;
  if (!file.is_cpp()) return includes;  // pages quote code
  for (std::size_t i = 0; i < file.lines.size(); ++i) {
    const std::string& line = file.lines[i];
    if (line.rfind("#include", 0) != 0) continue;
    const std::size_t open = line.find_first_of("<\"", 8);
    if (open == std::string::npos) continue;
    const bool quoted = line[open] == '"';
    const std::size_t close = line.find(quoted ? '"' : '>', open + 1);
    if (close == std::string::npos) continue;
    const std::string path = line.substr(open + 1, close - open - 1);
    std::string at = path.starts_with("ebb/") ? path.substr(4) : path;
    if (quoted && file.is_for_c()) at = "bindings/c/" + path;
    includes.push_back({i + 1, quoted, path, std::move(at)});
  }
  return includes;
}

void Offenders::add(const SourceFile& file, std::size_t line, std::string_view what) {
  list_ += file.path + ":" + std::to_string(line) + ": " + std::string(what) + "\n";
}

testing::AssertionResult Offenders::none() const {
  if (list_.empty()) return testing::AssertionSuccess();
  return testing::AssertionFailure() << "offenders:\n" << list_;
}

void Offenders::add(std::string_view what) { list_ += std::string(what) + "\n"; }

}  // namespace ebb::tidy
