// The program that `./dev gpu-check` runs, over the stub, with next to nothing to measure: every
// figure is there, and a step pages what was planned.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>

#include "ebb/formats/json/json_reader.h"
#include "tests/gpu/goals.h"
#include "tests/support/program.h"

namespace ebb::gpu {
namespace {

namespace json = formats::json;
using test_support::Outcome;
using test_support::run_program;
using test_support::ScratchDirectory;
using test_support::text_of_file;

// Part -> entry -> field -> its number; what is none is left out.
using Numbers = std::map<std::string, std::map<std::string, std::map<std::string, std::uint64_t>>>;

Result<Numbers> numbers_of(const std::string& document) {
  Numbers all;
  json::Reader reader({"gpu.json", 0, "the figures"}, document);
  EBB_TRY(reader.read([&](std::string_view part, json::Value value) -> Result<> {
    if (part == "device" || part == "fingerprint" || part == "disk") return {};
    return reader.fields(value, part, [&](std::string_view entry, json::Value fields) {
      auto& into = all[std::string(part)][std::string(entry)];
      return reader.fields(fields, entry,
                           [&](std::string_view name, json::Value field) -> Result<> {
                             if (name.ends_with("note") || part == "goals") return {};
                             EBB_TRY_ASSIGN(into[std::string(name)], reader.whole(field, name));
                             return {};
                           });
    });
  }));
  return all;
}

class GpuBench : public testing::Test {
 protected:
  Outcome small(const std::vector<std::string>& more = {}) {
    std::vector<std::string> words = {EBB_CUDA_STUB, "--json",        scratch_ / "gpu.json",
                                      "--swap",      scratch_.path(), "--small"};
    words.insert(words.end(), more.begin(), more.end());
    return run_program("ebb-gpu-bench", words);
  }
  Numbers figures() {
    const auto numbers = numbers_of(text_of_file(scratch_ / "gpu.json"));
    EXPECT_TRUE(numbers) << numbers.error().message;
    return numbers ? *numbers : Numbers();
  }
  const ScratchDirectory scratch_;
};

TEST_F(GpuBench, MeasuresEverythingAndPagesWhatWasPlanned) {
  const Outcome run = small();
  ASSERT_EQ(run.exit, 0) << run.out << run.err;
  Numbers all = figures();
  EXPECT_EQ(all["moved"].size(), 9u);
  for (const char* what : {"copy up, pinned", "copy down, pinned", kInside, kBothWays})
    EXPECT_GT(all["moved"][what]["bytes"], 0u) << what;
  const Scale scale = Scale::small();
  for (const std::string by : {"ebb torch: ", "ebb gram: "}) {
    for (const Batch& batch : scale.batches())
      EXPECT_GT(all["newton_schulz"][by + batch.text()]["nanoseconds"], 0u) << batch.text();
    EXPECT_GT(all["newton_schulz"][by + scale.of_7b.text()]["nanoseconds"], 0u);
  }
  ASSERT_EQ(all["steps"].size(), 3u);
  for (auto& [home, step] : all["steps"]) {
    EXPECT_EQ(step["matrices"], 224u) << home;
    EXPECT_GT(step["caller_cpu_nanoseconds"], 0u) << home;
    EXPECT_GT(step["newton_schulz_alone_nanoseconds"], 0u) << home;
    EXPECT_EQ(step["read_bytes"], step["planned_read_bytes"]) << home;
    EXPECT_EQ(step["written_bytes"], step["planned_written_bytes"]) << home;
    EXPECT_EQ(step["read_bytes"] > 0, home == "nvme") << home;
    EXPECT_EQ(step["weights_crc32c"], all["steps"]["nvme"]["weights_crc32c"]) << home;
  }
  EXPECT_GE(all["steps"]["nvme"]["read_bytes"], all["steps"]["nvme"]["state_bytes"]);
  EXPECT_GT(all["steps"]["nvme"]["moving_alone_nanoseconds"], 0u);
  EXPECT_GT(all["steps"]["host"]["moving_alone_nanoseconds"], 0u);
  EXPECT_NE(run.out.find("a small run"), std::string::npos) << run.out;
  EXPECT_EQ(run.out.find("FAILED"), std::string::npos) << run.out;
}

TEST_F(GpuBench, TakesTorchsFiguresAndWhoIsAbsent) {
  const std::string file = scratch_ / "torch.json";
  std::ofstream(file) << R"({"newton_schulz_nanoseconds": {"torch keller, compiled":
      {"1 x 48 x 48": 1000, "4 x 48 x 48": 10, "2 x 80 x 48": 20, "1 x 48 x 80": 30}},
      "absent": {"gram-newton-schulz": "No module named quack"}})";
  const Outcome run = small({"--torch", file});
  ASSERT_EQ(run.exit, 0) << run.out << run.err;
  Numbers all = figures();
  EXPECT_EQ(all["newton_schulz"]["torch keller, compiled: 1 x 48 x 48"]["nanoseconds"], 1000u);
  EXPECT_EQ(
      all["newton_schulz"]["torch keller, compiled: 7B-shaped (2 x one layer)"]["nanoseconds"],
      120u);
}

TEST_F(GpuBench, RefusesFiguresThatNobodyAskedFor) {
  const std::string file = scratch_ / "torch.json";
  std::ofstream(file) << R"({"newton_schulz_nanoseconds": {"torch": {"1 x 2 x 3": 1}}})";
  const Outcome run = small({"--torch", file});
  EXPECT_EQ(run.exit, 1);
  EXPECT_NE(run.err.find("nobody asked for 1 x 2 x 3"), std::string::npos) << run.err;
}

TEST_F(GpuBench, SaysWhichDeviceThereIsAndThatThereIsNone) {
  const Outcome stub = run_program("ebb-gpu-bench", {EBB_CUDA_STUB});
  EXPECT_EQ(stub.exit, 0) << stub.err;
  EXPECT_EQ(stub.out.substr(0, 8), "Stub 0, ");
  const Outcome real = run_program("ebb-gpu-bench", {EBB_CUDA_PLUGIN});
  if (real.exit == 0) GTEST_SKIP() << "there is a GPU: " << real.out;
  EXPECT_EQ(real.exit, 3);
  EXPECT_EQ(std::ranges::count(real.err, '\n'), 2) << real.err;  // an error and its hint
  EXPECT_EQ(real.out, "");
}

TEST_F(GpuBench, RefusesWhatItDoesNotKnow) {
  using Words = std::vector<std::string>;
  for (const Words& words : {Words{}, Words{"--json"}, Words{EBB_CUDA_STUB, "--json"},
                             Words{EBB_CUDA_STUB, "--json", "x"}, Words{EBB_CUDA_STUB, "--small"},
                             Words{EBB_CUDA_STUB, "--swap", "x", "--what", "y"}})
    EXPECT_EQ(run_program("ebb-gpu-bench", words).exit, 2);
}

TEST_F(GpuBench, IsNotRunByTheScriptWhereThereIsNoGpu) {
  const Outcome run = run_program(std::string(EBB_GPU_CHECK) + "/run",
                                  {EBB_BIN, scratch_ / "gpu.json", scratch_.path()});
  if (run.exit == 0 || run.exit == 1) GTEST_SKIP() << "there is a GPU: " << run.out;
  EXPECT_EQ(run.exit, 3);
  EXPECT_EQ(run.out, "");
  EXPECT_EQ(std::ranges::count(run.err, '\n'), 2) << run.err;  // an error and its hint
  EXPECT_TRUE(std::filesystem::is_empty(scratch_.path()));
}

// The script with the stub where it expects the plugin: nothing but figures is left behind, and
// what fails on the way is its exit code.
TEST_F(GpuBench, IsRunByTheScriptBetweenThePluginsTestsAndWhatItWrites) {
  const std::string bin = scratch_ / "bin", swap = scratch_ / "swap";
  for (const std::string& folder : {bin, swap}) std::filesystem::create_directory(folder);
  const auto program = [&](const std::string& name, const std::string& line) {
    const std::string path = bin + "/" + name;
    std::ofstream(path) << "#!/bin/sh\n" << line << '\n';
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
  };
  std::filesystem::create_symlink(EBB_CUDA_STUB, bin + "/ebb-cuda.so");
  program("ebb-gpu-bench",
          "[ $# = 1 ] || set -- \"$@\" --small; exec " EBB_BIN "/ebb-gpu-bench \"$@\"");
  for (const int tests : {0, 1}) {
    program("libmuon_cuda_test", "exit " + std::to_string(tests));
    const Outcome run =
        run_program(std::string(EBB_GPU_CHECK) + "/run", {bin, scratch_ / "gpu.json", swap});
    EXPECT_EQ(run.exit, tests) << run.out << run.err;
    EXPECT_EQ(figures()["steps"].size(), 3u);
    const std::string tables = text_of_file(scratch_ / "gpu.txt");
    EXPECT_NE(tables.find("Newton-Schulz"), std::string::npos) << tables;
    EXPECT_NE(run.out.find(tables), std::string::npos) << run.out;
    EXPECT_TRUE(std::filesystem::is_empty(swap));
  }
}

// What torch is asked for is what it is compared with.
TEST(GpuBenchTorch, IsAskedForTheShapesThatHaveGoals) {
  const std::string script = text_of_file(std::string(EBB_GPU_CHECK) + "/torch_times.py");
  const Scale scale = Scale::full();
  std::vector<Batch> asked;
  for (const Scale::Goal& goal : scale.goals) asked.push_back(goal.batch);
  for (const Batch& batch : scale.of_7b.layer()) asked.push_back(batch);
  for (const auto& [count, rows, cols] : asked)
    EXPECT_NE(script.find(formats::compose("({}, {}, {})", count, rows, cols)), std::string::npos)
        << count << " x " << rows << " x " << cols;
  for (const char* by : {kKeller, kGram})
    EXPECT_NE(script.find("\"" + std::string(by) + "\""), std::string::npos) << by;
}

}  // namespace
}  // namespace ebb::gpu
