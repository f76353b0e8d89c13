// ebb-inspect-bench: how long ckpt-inspect takes to show what large checkpoints are, beside
// programs that people wait for anyway, in the same run: h5ls of an HDF5 file with as many
// datasets, and Python's `import torch`.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/program.h"

namespace ebb {

namespace {

using Clock = std::chrono::steady_clock;
using Command = std::vector<std::string>;

struct Measured {
  double seconds = 0;    // the shortest of the rounds
  double processor = 0;  // seconds of processor time in that round
  long resident_kib = 0;
};

double seconds_of(const timeval& time) {
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
}

constexpr unsigned kLimit = 120;  // seconds: what takes longer is left out, by name

void doing(const char* what) { std::fprintf(stderr, "bench inspect: %s\n", what); }

// nullopt: it could not be run, failed, or takes longer than the limit. Output goes nowhere. The
// resident memory is never less than what this program has, so that large work is left to programs
// of its own.
std::optional<Measured> once(const Command& command) {
  std::vector<char*> words;
  for (const std::string& word : command) words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  std::fflush(stdout);
  const auto start = Clock::now();
  const pid_t child = fork();
  if (child == 0) {
    if (std::freopen("/dev/null", "w", stdout) == nullptr) _exit(127);
    alarm(kLimit);
    execvp(words[0], words.data());
    _exit(127);
  }
  int status = 0;
  rusage usage{};
  if (child < 0 || wait4(child, &status, 0, &usage) != child || status != 0) return std::nullopt;
  return Measured{std::chrono::duration<double>(Clock::now() - start).count(),
                  seconds_of(usage.ru_utime) + seconds_of(usage.ru_stime), usage.ru_maxrss};
}

std::optional<Measured> best_of(int rounds, const Command& command) {
  std::optional<Measured> best;
  for (int i = 0; i < rounds; ++i) {
    const auto one = once(command);
    if (!one) return std::nullopt;
    if (!best || one->seconds < best->seconds) best = one;
  }
  return best;
}

struct Peers {
  std::optional<Measured> h5ls, torch;
};

std::string ratio(const Measured& ours, const std::optional<Measured>& theirs) {
  if (!theirs) return "not here";
  std::array<char, 32> out{};
  std::snprintf(out.data(), out.size(), "%.2f", ours.seconds / theirs->seconds);
  return out.data();
}

void print(const std::string& what, const Measured& ours, const Peers& peers) {
  std::printf("  %-42s %8.1f ms %8.1f ms %6ld MiB  %8s  %8s\n", what.c_str(), ours.seconds * 1000,
              ours.processor * 1000, ours.resident_kib / 1024, ratio(ours, peers.h5ls).c_str(),
              ratio(ours, peers.torch).c_str());
}

struct Case {
  const char* what;
  Command checkpoint;  // arguments of ebb-synthetic but the directory
  bool holes = false;
  int rounds = 9;
};

// Both of a parameter's tensors count.
const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"safetensors: 10,000 tensors", {"safetensors", "5000", "1", "8"}},
      {"dcp: 10,000 tensors, 10,000 chunks", {"dcp", "5000", "1", "8"}},
      {"torch: 10,000 tensors", {"torch", "5000", "1", "8"}},
      {"megatron: 10,000 tensors", {"megatron", "5000", "1", "8"}},
      {"deepspeed: 10,000 tensors, 4 ranks", {"deepspeed", "5000", "4", "8"}},
      {"dcp: 10,000 tensors, 1,000,000 chunks", {"dcp", "5000", "100", "100"}, true, 3},
  };
  return all;
}

// ebb-synthetic writes past the page cache, where the peers' files are after their first run: all
// rounds are to find theirs there. What is larger is payload.
void bring_into_cache(const std::string& directory) {
  constexpr std::uintmax_t kMost = std::uintmax_t{64} << 20;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(directory)) {
    if (!entry.is_regular_file() || entry.file_size() > kMost) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    std::array<char, 4096> part{};
    while (file.read(part.data(), part.size()) || file.gcount() > 0) {
    }
  }
}

// A peer that is not here, fails or takes too long is left out.
std::optional<Measured> peer(const char* what, int rounds, const Command& command) {
  doing(what);
  const auto best = best_of(rounds, command);
  if (!best)
    std::printf("bench inspect: left out: %s: not here, or not within %u seconds\n", what, kLimit);
  return best;
}

bool show(const Case& one, const Peers& peers) {
  doing(one.what);
  const test_support::ScratchDirectory scratch;
  const std::string programs = std::string(EBB_BIN) + "/";
  Command make = {programs + "ebb-synthetic"};
  make.insert(make.end(), one.checkpoint.begin(), one.checkpoint.end());
  make.push_back(scratch.path());
  if (one.holes) make.emplace_back("holes");
  std::optional<Measured> ours;
  if (once(make)) {
    bring_into_cache(scratch.path());
    ours = best_of(one.rounds, {programs + "ckpt-inspect", scratch.path()});
  }
  if (!ours)
    std::fprintf(stderr, "%s: ebb-synthetic or ckpt-inspect failed, or took more than %u seconds\n",
                 one.what, kLimit);
  if (ours) print(one.what, *ours, peers);
  return ours.has_value();
}

}  // namespace

// ebb-inspect-bench [HDF5-FILE-OF-10,000-DATASETS [PYTHON]]
int program_main(int argc, char** argv) {
  Peers peers;
  if (argc > 1) peers.h5ls = peer("h5ls", 5, {"h5ls", "-r", argv[1]});
  if (argc > 2) peers.torch = peer("import torch", 3, {argv[2], "-c", "import torch"});
  std::printf("  %-42s %11s %11s %10s  %8s  %8s\n", "shortest of several runs", "time", "processor",
              "memory", "of h5ls", "of torch");
  if (peers.h5ls) print("h5ls -r, 10,000 datasets", *peers.h5ls, peers);
  if (peers.torch) print("python -c 'import torch'", *peers.torch, peers);
  bool good = true;
  for (const Case& one : cases()) good &= show(one, peers);
  return good ? 0 : 1;
}

}  // namespace ebb

int main(int argc, char** argv) { return ebb::program_main(argc, argv); }
