// Who may include whom: formats <- libswap <- libmuon <- bindings, tools on the side, system calls
// in one folder.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "tests/tidy/source_tree.h"

namespace ebb::tidy {
namespace {

using Folders = std::vector<std::string>;

const Folders kLibraries = {"formats", "libswap", "libmuon"};

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
      {"bindings", {"formats", "libswap", "libmuon", "bindings"}},
      {"plugins", {"formats", "libswap", "libmuon", "plugins"}},
      {"examples", {"formats", "libswap", "libmuon", "tools", "examples"}},
      {"tests",
       {"formats", "libswap", "libmuon", "bindings", "plugins", "tools", "examples", "tests"}},
  };
  Offenders offenders;
  for (const SourceFile& file : source_files()) {
    for (const Include& include : includes_of(file)) {
      if (!include.quoted) continue;
      const std::string target = include.file.substr(0, include.file.find('/'));
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
      if (!include.quoted || find_file(include.file) != nullptr) continue;
      offenders.add(file, include.line, "no such file: " + include.path);
    }
  }
  EXPECT_TRUE(offenders.none());
}

// As after installation, where nothing of ours may lie in a consumer's way under another name.
TEST(Tidy, HeadersOfTheLibrariesAreIncludedAsEbb) {
  Offenders offenders;
  for (const SourceFile& file : source_files()) {
    for (const Include& include : includes_of(file)) {
      const std::string top = include.file.substr(0, include.file.find('/'));
      if (!include.quoted || contains(kLibraries, top) == include.path.starts_with("ebb/"))
        continue;
      offenders.add(file, include.line, include.path);
    }
  }
  EXPECT_TRUE(offenders.none());
}

// The folders of each library from the ground up: a folder includes only what stands before it.
// Where several stand in one line, none of them includes another.
const std::vector<std::string> kFloors = {
    "formats/core",
    "formats/layout",
    "formats/catalog",
    "formats/json formats/pickle formats/zip",
    "formats/torch",
    "formats/state_dict",
    "formats/elements",
    "formats/conversion",
    "formats/native formats/hdf5 formats/deepspeed formats/safetensors formats/torch_save",
    "formats/dcp formats/torch_checkpointing",
    "formats/megatron formats/folders",
    "formats",
    "libswap/sys",
    "libswap/device",
    "libswap",
    "libswap/queue libswap/tree",
    "libswap/testing",
    "libswap/store",
    "libswap/pager libswap/read libswap/publish",
    "libswap/write libswap/state",
    "libswap/space",
    "libmuon/spec libmuon/comm",
    "libmuon/kernels",
    "libmuon/plan",
    "libmuon/step",
};

std::size_t floor_of(const std::string& folder) {
  for (std::size_t i = 0; i < kFloors.size(); ++i) {
    if ((" " + kFloors[i] + " ").find(" " + folder + " ") != std::string::npos) return i;
  }
  return kFloors.size();
}

TEST(Tidy, FoldersOfALibraryIncludeOnlyWhatStandsBelowThem) {
  Offenders offenders;
  for (const SourceFile& file : source_files()) {
    if (!file.is_cpp() || !contains(kLibraries, file.top())) continue;
    const std::string folder = file.path.substr(0, file.path.rfind('/'));
    if (floor_of(folder) == kFloors.size()) offenders.add(file, 1, "its folder has no floor");
    for (const Include& include : includes_of(file)) {
      if (!include.quoted) continue;
      const std::string target = include.file.substr(0, include.file.rfind('/'));
      if (target == folder || floor_of(target) < floor_of(folder)) continue;
      offenders.add(file, include.line, "may not include " + include.path);
    }
  }
  EXPECT_TRUE(offenders.none());
}

// A unit is a header and what is behind it: "libmuon/step/engine".
using Units = std::map<std::string, std::set<std::string>>;

Units units_of_libraries() {
  const auto unit_of = [](const std::string& path) { return path.substr(0, path.rfind('.')); };
  Units units;
  for (const SourceFile& file : source_files()) {
    if (!file.is_cpp() || !contains(kLibraries, file.top())) continue;
    std::set<std::string>& included = units[unit_of(file.path)];
    for (const Include& include : includes_of(file))
      if (include.quoted) included.insert(unit_of(include.file));
  }
  return units;
}

std::set<std::string> reached_from(const std::string& unit, const Units& units) {
  std::set<std::string> reached;
  std::vector<std::string> next = {unit};
  while (!next.empty()) {
    const auto found = units.find(next.back());
    next.pop_back();
    if (found == units.end()) continue;
    for (const std::string& included : found->second)
      if (reached.insert(included).second) next.push_back(included);
  }
  return reached;
}

// A header and its private half, or two that are one matter, may know each other: pairs, and few.
TEST(Tidy, UnitsThatIncludeEachOtherAreFiveAtMostAndPairs) {
  const Units units = units_of_libraries();
  std::map<std::string, std::set<std::string>> reached;
  for (const auto& [unit, included] : units) reached[unit] = reached_from(unit, units);
  Offenders offenders;
  std::set<std::set<std::string>> circles;
  for (const auto& [unit, others] : reached) {
    std::set<std::string> circle = {unit};
    for (const std::string& other : others)
      if (reached.contains(other) && reached.at(other).contains(unit)) circle.insert(other);
    if (circle.size() > 1) circles.insert(circle);
  }
  for (const auto& circle : circles) {
    std::string names;
    for (const std::string& unit : circle) names += unit + " ";
    if (circle.size() > 2 || circles.size() > 5) offenders.add(names);
  }
  EXPECT_TRUE(offenders.none());
  EXPECT_FALSE(circles.empty()) << "the test looks for what is not there";
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

// What a file system is asked about checkpoints lies with the trees, all other system calls in sys.
TEST(Tidy, SystemCallsAreMadeInTwoFolders) {
  EXPECT_TRUE(
      outside_of({
                     {"fcntl.h", {"libswap/sys/", "libswap/tree/"}},
                     {"unistd.h", {"libswap/sys/", "libswap/tree/"}},
                     {"liburing", {"libswap/sys/"}},
                     {"linux/", {"libswap/sys/", "libswap/tree/"}},
                     {"sys/", {"libswap/sys/", "libswap/tree/"}},
                     {"dirent.h", {"libswap/sys/"}},
                     {"fstream", {"libswap/sys/"}},
                     // Stopping cleanly on a signal is the business of a program, not of a library.
                     {"csignal", {"libswap/sys/", "tools/cli/", "examples/"}},
                     {"signal.h", {"libswap/sys/", "libswap/tree/", "tools/cli/", "examples/"}},
                 })
          .none());
}

TEST(Tidy, EachThirdPartyLibraryHasItsFolder) {
  EXPECT_TRUE(outside_of({
                             {"simdjson", {"formats/json/", "formats/catalog/"}},
                             {"zstd", {"formats/core/"}},
                             {"zlib.h", {"formats/core/"}},
                             {"hdf5", {"tools/hdf5_reader/"}},
                             {"H5", {"tools/hdf5_reader/"}},
                             {"isa-l", {"formats/core/"}},
                             {"openssl/", {"formats/core/"}},
                             {"boost/", {"tools/cli/"}},
                         })
                  .none());
}

// What CMake leaves out where there is no nvcc.
TEST(Tidy, OnlyThePluginAndItsTestsNeedCuda) {
  const Folders with_cuda = {"plugins/cuda/", "tests/libmuon/cuda/"};
  // Kernels, and what stands for their headers where they run on the host.
  const Folders kernels = {"plugins/cuda/", "tests/libmuon/cuda/emulated/"};
  const Folders headers = {"cuda", "cublas", "nccl"};
  Offenders offenders;
  std::size_t users = 0;
  for (const SourceFile& file : source_files())
    for (const Include& include : includes_of(file)) {
      const bool cuda =
          !include.quoted && std::ranges::any_of(headers, [&](const std::string& name) {
            return include.path.starts_with(name);
          });
      users += cuda ? 1 : 0;
      const bool plugin = include.quoted && include.file.starts_with("plugins/");
      if ((cuda || plugin) && !is_below(file, with_cuda))
        offenders.add(file, include.line, include.path);
      if (file.is_cuda() && !is_below(file, kernels)) offenders.add(file, 1, "a kernel elsewhere");
    }
  EXPECT_TRUE(offenders.none());
  EXPECT_GE(users, 3u) << "the test looks for what is not there";
}

// The programs that CMake leaves out where there is no MPI; nothing includes Python.
TEST(Tidy, OnlyWhatIsBuiltWithMpiNeedsIt) {
  const Folders with_mpi = {"libmuon/comm/mpi_ranks.h", "examples/gpt/mpi_main.cpp",
                            "tests/libmuon/mpi/"};
  const Folders never = {"torch/", "ATen/", "Python.h", "pybind11"};
  Offenders offenders;
  std::size_t users = 0;
  for (const SourceFile& file : source_files())
    for (const Include& include : includes_of(file)) {
      const bool mpi = include.path == "mpi.h" || include.path.ends_with("/mpi_ranks.h");
      const bool foreign = std::ranges::any_of(
          never, [&](const std::string& header) { return include.path.starts_with(header); });
      if (foreign || (mpi && !is_below(file, with_mpi)))
        offenders.add(file, include.line, include.path);
      users += mpi ? 1 : 0;
    }
  EXPECT_TRUE(offenders.none());
  EXPECT_GE(users, 3u) << "the test looks for what is not there";
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
}  // namespace ebb::tidy
