// ebb-gpt-step: steps of the C++ engine on the GPT of examples/gpt, for tests/bench/python.
//   ebb-gpt-step shapes WIDTH LAYERS
//       prints "NAME muon|adamw EXTENT..." for each parameter, in the engine's order
//   ebb-gpt-step DIRECTORY WIDTH LAYERS BUDGET THREADS
//       an engine of so many bytes and threads. Reads one word a line and answers with a line:
//         step      seconds of a step, its gradients handed in
//         snapshot  makes a step; seconds from snapshot() until it is committed
//         sum       the sum of all weights' bits, which says whether they are another's
#include <algorithm>
#include <bit>
#include <charconv>
#include <chrono>
#include <iostream>

#include "ebb/libmuon/spec/presets.h"
#include "ebb/libswap/sys/process.h"
#include "examples/gpt/model.h"
#include "tests/bench/stepped_engine.h"

namespace ebb::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::uint32_t kHeads = 4;

// Matrices for Muon first, as ebb.torch.groups() has them.
Result<std::vector<gpt::Parameter>> parameters_of(std::uint32_t width, std::uint32_t layers) {
  EBB_TRY_ASSIGN(
      gpt::Model model,
      gpt::Model::make({.width = width, .layers = layers, .heads = kHeads, .hidden = 4 * width}));
  std::ranges::stable_partition(model.parameters, [](const gpt::Parameter& parameter) {
    return parameter.optimizer == gpt::Optimizer::muon;
  });
  return std::move(model.parameters);
}

bool is_muon(const gpt::Parameter& parameter) {
  return parameter.optimizer == gpt::Optimizer::muon;
}

Result<> print_shapes(std::uint32_t width, std::uint32_t layers) {
  EBB_TRY_ASSIGN(const auto parameters, parameters_of(width, layers));
  for (const gpt::Parameter& parameter : parameters) {
    std::cout << parameter.name << (is_muon(parameter) ? " muon" : " adamw");
    for (const std::uint64_t extent : parameter.shape) std::cout << ' ' << extent;
    std::cout << '\n';
  }
  return {};
}

// As ebb.torch.Muon has it, Newton-Schulz in fp32: products of bf16 are chosen by what is measured
// when a store is made, and bits would depend on that.
libmuon::EngineConfig config_of(const std::vector<gpt::Parameter>& parameters) {
  libmuon::MuonSpec muon = *libmuon::preset("torch");
  muon.lr = 0.02;
  muon.weight_decay = 0.1;
  muon.precision = libmuon::Precision::fp32;
  libmuon::EngineConfig config;
  config.model.groups = {muon, libmuon::AdamSpec::torch()};
  for (const gpt::Parameter& parameter : parameters)
    config.model.params.push_back({parameter.name, parameter.shape, is_muon(parameter) ? 0u : 1u});
  config.partition.gradients = config.partition.weights = {.policy = Policy::replicated};
  config.dtypes["master"] = std::nullopt;  // weights are masters: ebb.torch's "auto" in fp32
  return config;
}

Result<double> step(SteppedEngine& stepped) {
  const auto begin = Clock::now();
  EBB_TRY(stepped.hand_in_gradients());
  EBB_TRY(stepped.engine().step({.max_norm = 1}));
  return libswap::seconds_since(begin);
}

Result<double> snapshot(SteppedEngine& stepped) {
  EBB_TRY(step(stepped));
  const auto begin = Clock::now();
  EBB_TRY(stepped.engine().snapshot());
  EBB_TRY(stepped.engine().wait_snapshot());
  return libswap::seconds_since(begin);
}

std::int64_t sum_of_bits(const SteppedEngine& stepped) {
  std::int64_t sum = 0;
  for (const std::vector<float>& weight : stepped.weights())
    for (const float value : weight) sum += std::bit_cast<std::int32_t>(value);
  return sum;
}

Result<> answer(SteppedEngine& stepped, std::string_view what) {
  if (what == "sum") {
    std::cout << sum_of_bits(stepped) << std::endl;
    return {};
  }
  if (what != "step" && what != "snapshot")
    return Error{Code::usage, "nothing is called " + std::string(what)};
  EBB_TRY_ASSIGN(const double seconds, what == "step" ? step(stepped) : snapshot(stepped));
  std::cout << seconds << std::endl;
  return {};
}

Result<> run(const char* directory, std::uint32_t width, std::uint32_t layers, std::uint64_t budget,
             std::uint32_t threads) {
  EBB_TRY_ASSIGN(const auto parameters, parameters_of(width, layers));
  libmuon::EngineConfig config = config_of(parameters);
  config.budget_bytes = budget;
  config.threads = threads;
  EBB_TRY_ASSIGN(const auto stepped,
                 SteppedEngine::open(config, directory, SteppedEngine::Gradients::one_each));
  for (std::string line; std::getline(std::cin, line) && !line.empty();)
    EBB_TRY(answer(*stepped, line));
  return {};
}

template <typename Number>
bool read(std::string_view text, Number& into) {
  return std::from_chars(text.data(), text.data() + text.size(), into).ec == std::errc();
}

}  // namespace

int program_main(int argc, char** argv) {
  std::uint32_t width = 0, layers = 0, threads = 0;
  std::uint64_t budget = 0;
  const bool shapes = argc == 4 && std::string_view(argv[1]) == "shapes";
  if (!(shapes || (argc == 6 && read(argv[4], budget) && read(argv[5], threads))) ||
      !read(argv[2], width) || !read(argv[3], layers)) {
    std::cerr << "ebb-gpt-step shapes WIDTH LAYERS, or DIRECTORY WIDTH LAYERS BUDGET THREADS\n";
    return 2;
  }
  const Result<> done =
      shapes ? print_shapes(width, layers) : run(argv[1], width, layers, budget, threads);
  if (!done) std::cout << "error " << done.error().message << std::endl;
  return done ? 0 : 1;
}

}  // namespace ebb::bench

int main(int argc, char** argv) { return ebb::bench::program_main(argc, argv); }
