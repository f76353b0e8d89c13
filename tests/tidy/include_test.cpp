// Who may include whom: formats <- libswap <- libmuon, tools on the side, system calls in one
// folder.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "tests/tidy/source_tree.h"

namespace tidy {
namespace {

using Folders = std::vector<std::string>;

bool contains(const Folders& folders, const std::string& name) {
  return std::find(folders.begin(), folders.end(), name) != folders.end();
}

bool is_below(const SourceFile& file, const Folders& prefixes) {
  return std::any_of(prefixes.begin(), prefixes.end(),
                     [&](const std::string& prefix) { return file.path.starts_with(prefix); });
}

TEST(Tidy, IncludesFollowTheStraightLine) {
  const std::map<std::string, Folders> allowed = {
      {"formats", {"formats"}},
      {"libswap", {"formats", "libswap"}},
      {"libmuon", {"formats", "libswap", "libmuon"}},
      {"tools", {"formats", "libswap", "tools"}},
      {"examples", {"formats", "libswap", "libmuon", "tools", "examples"}},
      {"tests", {"formats", "libswap", "libmuon", "tools", "examples", "tests"}},
  };
  Offenders offenders;
  for (const SourceFile& file : source_files()) {
    for (const Include& include : includes_of(file)) {
      if (!include.quoted) continue;
      const std::string target = include.path.substr(0, include.path.find('/'));
      const auto rule = allowed.find(file.top());
      const bool ok = rule != allowed.end() && contains(rule->second, target);
      if (!ok) offenders.add(file, include.line, "may not include " + include.path);
    }
  }
  EXPECT_TRUE(offenders.none());
}

TEST(Tidy, QuotedIncludesAreFilesOfTheProjectNamedFromItsRoot) {
  Offenders offenders;
  for (const SourceFile& file : source_files()) {
    for (const Include& include : includes_of(file)) {
      if (!include.quoted || find_file(include.path) != nullptr) continue;
      offenders.add(file, include.line, "no such file: " + include.path);
    }
  }
  EXPECT_TRUE(offenders.none());
}

struct Room {
  const char* header;  // a prefix of what stands between the angle brackets
  Folders folders;     // the only places below which it may be included; tests may always
};

Offenders outside_of(const std::vector<Room>& rooms) {
  Offenders offenders;
  for (const SourceFile& file : source_files()) {
    if (file.top() == "tests") continue;
    for (const Include& include : includes_of(file)) {
      for (const Room& room : rooms) {
        if (include.quoted || !include.path.starts_with(room.header)) continue;
        if (!is_below(file, room.folders)) offenders.add(file, include.line, include.path);
      }
    }
  }
  return offenders;
}

TEST(Tidy, OnlyTheSysFolderMakesSystemCalls) {
  EXPECT_TRUE(
      outside_of({
                     {"fcntl.h", {"libswap/sys/"}},
                     {"unistd.h", {"libswap/sys/"}},
                     {"liburing", {"libswap/sys/"}},
                     {"linux/", {"libswap/sys/"}},
                     {"sys/", {"libswap/sys/"}},
                     {"dirent.h", {"libswap/sys/"}},
                     {"fstream", {"libswap/sys/"}},
                     // Stopping cleanly on a signal is the business of a program, not of a library.
                     {"csignal", {"libswap/sys/", "tools/cli/", "examples/"}},
                     {"signal.h", {"libswap/sys/", "tools/cli/", "examples/"}},
                 })
          .none());
}

TEST(Tidy, EachThirdPartyLibraryHasItsFolder) {
  EXPECT_TRUE(outside_of({
                             {"simdjson", {"formats/safetensors/", "formats/catalog/"}},
                             {"zstd", {"formats/core/"}},
                             {"zlib.h", {"formats/core/", "formats/torch/"}},
                             {"hdf5", {"tools/hdf5_reader/"}},
                             {"H5", {"tools/hdf5_reader/"}},
                             {"isa-l", {"formats/core/"}},
                             {"openssl/", {"formats/core/"}},
                             {"oneapi/", {"libmuon/kernels/"}},
                             {"dnnl", {"libmuon/kernels/"}},
                             {"boost/", {"tools/cli/"}},
                         })
                  .none());
}

TEST(Tidy, FormatsIsPure) {
  const Folders impure = {"thread",   "mutex",        "condition_variable",
                          "future",   "shared_mutex", "chrono",
                          "iostream", "filesystem",   "ctime",
                          "random",   "atomic",       "latch",
                          "barrier"};
  Offenders offenders;
  for (const SourceFile& file : source_files()) {
    if (file.top() != "formats") continue;
    for (const Include& include : includes_of(file)) {
      if (!include.quoted && contains(impure, include.path)) {
        offenders.add(file, include.line, include.path);
      }
    }
  }
  EXPECT_TRUE(offenders.none());
}

}  // namespace
}  // namespace tidy
