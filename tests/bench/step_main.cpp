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
#include "ebb/libmuon/step/engine.h"
#include "ebb/libswap/queue/disk_probe.h"

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
    EBB_TRY_ASSIGN(auto backend, libswap::open_backend(libswap::BackendChoice::automatic));
    EBB_TRY_ASSIGN(trainer->io_, libswap::IoQueue::start(std::move(backend.backend), {}));
    EBB_TRY_ASSIGN(trainer->swap_, libswap::SwapDirectory::open(*trainer->io_, directory));
    const auto initial = [](std::uint32_t param, FlatRange range, std::span<float> into) {
      for (std::uint64_t i = 0; i < into.size(); ++i) into[i] = number(param, range.first + i);
    };
    EBB_TRY_ASSIGN(trainer->engine_, Engine::open(config, *trainer->ranks_.front(), *trainer->io_,
                                                  *trainer->swap_, {.initial = initial}));
    trainer->directory_ = directory;
    const std::size_t params = config.model.params.size();
    trainer->weights_.resize(params);
    for (std::uint32_t i = 0; i < params; ++i) {
      trainer->weights_[i].resize(kRows * kCols);
      EBB_TRY(trainer->engine_->bind_weights(i, trainer->weights_[i]));
    }
    // One gradient for all: what is measured is the state's memory.
    trainer->gradient_.resize(kRows * kCols);
    for (std::uint64_t i = 0; i < kRows * kCols; ++i) trainer->gradient_[i] = number(7, i);
    EBB_TRY(trainer->engine_->install_weights());
    std::cerr << trainer->engine_->origin() << '\n';
    return trainer;
  }

  Result<> step() {
    EBB_TRY_ASSIGN(const auto disk, libswap::measure_disk(*io_, directory_, {.bytes = 256u << 20}));
    const auto before = engine_->stats();
    for (std::uint32_t i = 0; i < weights_.size(); ++i)
      EBB_TRY(engine_->gradient_ready(i, gradient_));
    const std::clock_t cpu = std::clock();
    const auto begin = std::chrono::steady_clock::now();
    EBB_TRY(engine_->step({.max_norm = 1}));
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    const auto after = engine_->stats();
    std::cout << took.count() << ' ' << static_cast<double>(std::clock() - cpu) / CLOCKS_PER_SEC
              << ' ' << after.compute_s - before.compute_s << ' '
              << after.read_bytes - before.read_bytes << ' '
              << after.written_bytes - before.written_bytes << ' '
              << after.sent_bytes - before.sent_bytes << ' ' << peak_bytes() << ' ' << disk.mixed
              << std::endl;
    return {};
  }

 private:
  static float number(std::uint64_t param, std::uint64_t i) {
    const auto mixed = static_cast<std::uint32_t>((param + 1) * 2654435761u + i * 2246822519u);
    return static_cast<float>(mixed >> 8) * 0x1p-24f - 0.5f;
  }

  std::filesystem::path directory_;
  std::unique_ptr<libswap::IoQueue> io_;
  std::unique_ptr<libswap::SwapDirectory> swap_;
  std::vector<std::unique_ptr<libmuon::Communicator>> ranks_ = libmuon::make_thread_ranks(1);
  std::vector<std::vector<float>> weights_;
  std::vector<float> gradient_;
  std::unique_ptr<Engine> engine_;
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
