// ebb-step: an engine of one rank that makes a step for each line it reads. For tests/bench/step.
//   ebb-step muon|adamw DIRECTORY MATRICES CORES
// The model is so many matrices of 1024 x 4096; a quarter of its state stays in memory. Answers:
//   seconds, seconds of CPU, in sweeps without waits for tiles; bytes read, written, sent, in
//   memory at most so far; bytes a second that the disk gives both ways, measured before the step.
#include <charconv>
#include <chrono>
#include <ctime>
#include <fstream>
#include <iostream>
#include <memory>

#include "ebb/libmuon/spec/presets.h"
#include "ebb/libswap/queue/disk_probe.h"
#include "tests/bench/stepped_engine.h"

namespace ebb::bench {
namespace {

using libmuon::Engine;
using libmuon::EngineConfig;

constexpr std::uint64_t kRows = 1024, kCols = 4096;

Result<EngineConfig> config_of(std::string_view kind, std::uint32_t matrices, std::uint32_t cores) {
  EngineConfig config;
  if (kind == "muon")
    config.model.groups = {*libmuon::preset("torch")};
  else if (kind == "adamw")
    config.model.groups = {libmuon::AdamSpec::torch()};
  else
    return Error{Code::usage, "nothing is called " + std::string(kind)};
  for (std::uint32_t i = 0; i < matrices; ++i)
    config.model.params.push_back({std::to_string(i), {kRows, kCols}, 0});
  config.partition.gradients = config.partition.weights = {.policy = Policy::replicated};
  config.slots = 2;
  config.threads = cores;
  config.budget_bytes = ~std::uint64_t{0};
  EBB_TRY_ASSIGN(const auto plan, Engine::plan(config, Rank{0}));
  config.budget_bytes = std::max(plan.least_budget_bytes,
                                 plan.memory_bytes - plan.frame_bytes + plan.state_bytes / 4);
  return config;
}

std::uint64_t peak_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string field; status >> field;)
    if (std::uint64_t kib = 0; field == "VmHWM:" && status >> kib) return kib * 1024;
  return 0;
}

class Trainer {
 public:
  static Result<std::unique_ptr<Trainer>> open(const EngineConfig& config,
                                               const std::filesystem::path& directory) {
    auto trainer = std::make_unique<Trainer>();
    EBB_TRY_ASSIGN(trainer->stepped_,
                   SteppedEngine::open(config, directory, SteppedEngine::Gradients::one_for_all));
    trainer->directory_ = directory;
    return trainer;
  }

  Result<> step() {
    Engine& engine = stepped_->engine();
    EBB_TRY_ASSIGN(const auto disk,
                   libswap::measure_disk(stepped_->io(), directory_, {.bytes = 256u << 20}));
    const auto before = engine.stats();
    EBB_TRY(stepped_->hand_in_gradients());
    const std::clock_t cpu = std::clock();
    const auto begin = std::chrono::steady_clock::now();
    EBB_TRY(engine.step({.max_norm = 1}));
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    const auto after = engine.stats();
    std::cout << took.count() << ' ' << static_cast<double>(std::clock() - cpu) / CLOCKS_PER_SEC
              << ' ' << after.compute_s - before.compute_s << ' '
              << after.read_bytes - before.read_bytes << ' '
              << after.written_bytes - before.written_bytes << ' '
              << after.sent_bytes - before.sent_bytes << ' ' << peak_bytes() << ' ' << disk.mixed
              << std::endl;
    return {};
  }

 private:
  std::filesystem::path directory_;
  std::unique_ptr<SteppedEngine> stepped_;
};

Result<> run(std::string_view kind, const char* directory, std::uint32_t matrices,
             std::uint32_t cores) {
  EBB_TRY_ASSIGN(const EngineConfig config, config_of(kind, matrices, cores));
  EBB_TRY_ASSIGN(const auto trainer, Trainer::open(config, directory));
  for (std::string line; std::getline(std::cin, line) && !line.empty();) EBB_TRY(trainer->step());
  return {};
}

}  // namespace

int program_main(int argc, char** argv) {
  std::uint32_t matrices = 0, cores = 0;
  const auto number = [](std::string_view text, std::uint32_t& into) {
    return std::from_chars(text.data(), text.data() + text.size(), into).ec == std::errc();
  };
  if (argc != 5 || !number(argv[3], matrices) || !number(argv[4], cores)) {
    std::cerr << "ebb-step muon|adamw DIRECTORY MATRICES CORES\n";
    return 2;
  }
  const Result<> done = run(argv[1], argv[2], matrices, cores);
  if (!done) std::cout << "error " << done.error().message << std::endl;
  return done ? 0 : 1;
}

}  // namespace ebb::bench

int main(int argc, char** argv) { return ebb::bench::program_main(argc, argv); }
