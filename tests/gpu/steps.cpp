#include "tests/gpu/steps.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <ctime>
#include <limits>
#include <thread>

#include "ebb/formats/core/crc32c.h"
#include "ebb/formats/core/units.h"
#include "ebb/libmuon/spec/presets.h"
#include "ebb/libmuon/step/engine.h"
#include "ebb/libswap/queue/disk_probe.h"
#include "ebb/libswap/queue/probe_file.h"
#include "ebb/libswap/sys/process.h"

namespace ebb::gpu {
namespace {

using formats::Code;
using formats::compose;
using formats::DType;
using formats::Error;
using libmuon::Engine;
using libmuon::EngineConfig;
using libswap::Buffer;
using libswap::Tier;

constexpr const char* kPreset = "gram";

double thread_cpu_seconds() {
  timespec now{};
  ::clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + static_cast<double>(now.tv_nsec) / 1e9;
}

// In the order of a forward pass; norms are AdamW's.
Result<libmuon::ModelSpec> model_spec(const Model& model) {
  EBB_TRY_ASSIGN(const libmuon::MuonSpec muon, libmuon::preset(kPreset));
  libmuon::ModelSpec spec{.groups = {muon, libmuon::AdamSpec()}};
  const auto add = [&](std::string name, Shape shape, std::uint32_t group) {
    spec.params.push_back({.name = std::move(name),
                           .shape = std::move(shape),
                           .group = group,
                           .gradient = DType::bf16,
                           .weight = DType::bf16});
  };
  for (std::uint64_t layer = 0; layer < model.layers; ++layer) {
    add(compose("{}.norm1", layer), {model.hidden}, 1);
    add(compose("{}.norm2", layer), {model.hidden}, 1);
    std::uint64_t number = 0;
    for (const auto& [count, rows, cols] : model.layer())
      for (std::uint64_t i = 0; i < count; ++i)
        add(compose("{}.{}", layer, number++), {rows, cols}, 0);
  }
  add("norm", {model.hidden}, 1);
  return spec;
}

// All state at home in one place.
Result<EngineConfig> config_of(Bench& bench, const Scale& scale, Tier home) {
  EngineConfig config;
  EBB_TRY_ASSIGN(config.model, model_spec(scale.stepped));
  config.partition.gradients = config.partition.weights = {.policy = Policy::replicated};
  config.tile_bytes = scale.tile_bytes;
  config.slots = 2;
  config.threads = std::clamp(std::thread::hardware_concurrency(), 1u, 8u);
  config.accelerator = bench.accelerator.get();
  config.gradients_on = config.weights_on = libmuon::Side::device;
  config.tiers = {{"master", home}, {"momentum_buffer", home}, {"exp_avg", home}};
  config.budget_bytes = ~std::uint64_t{0};
  EBB_TRY_ASSIGN(const auto plan, Engine::plan(config, Rank{0}, libmuon::Side::device));
  config.budget_bytes = plan.memory_bytes;
  return config;
}

// A trainer's gradients and weights: one piece of the device's memory each, parameter by parameter.
struct Trainer {
  static Result<Trainer> make(Bench& bench, const libmuon::ModelSpec& model) {
    constexpr std::uint64_t kApart = 128;  // elements: as allocators place tensors
    Trainer trainer;
    std::uint64_t elems = 0, largest = 0;
    for (const libmuon::ParamSpec& param : model.params) {
      const std::uint64_t count = formats::volume(param.shape);
      trainer.ranges.emplace_back(elems, count);
      elems += formats::align_up(count, kApart);
      largest = std::max(largest, count);
    }
    EBB_TRY_ASSIGN(trainer.gradients, bench.device->allocate(2 * elems));
    EBB_TRY_ASSIGN(trainer.weights, bench.device->allocate(2 * elems));
    std::vector<std::uint16_t> numbers(largest);
    std::uint32_t state = 7;
    for (std::uint16_t& number : numbers) {
      state = state * 1664525u + 1013904223u;
      number = static_cast<std::uint16_t>(0x3c00u | (state >> 16 & 0x81ffu));  // up to 1/32
    }
    const Buffer here = libswap::buffer_of(std::as_bytes(std::span(numbers))).as(DType::bf16);
    for (std::size_t i = 0; i < trainer.ranges.size(); ++i)
      libswap::copy(here.sub(0, trainer.ranges[i].second), trainer.gradient(i), {}).wait();
    return trainer;
  }
  Buffer gradient(std::size_t param) const { return part(gradients, param); }
  Buffer weight(std::size_t param) const { return part(weights, param); }
  std::uint32_t weights_crc() const {
    std::vector<std::byte> here(weights.buffer().size());
    libswap::copy(weights.buffer(), libswap::buffer_of(std::span(here)), {}).wait();
    return formats::crc32c(0, here);
  }
  Buffer part(const libswap::DeviceMemory& all, std::size_t param) const {
    return all.buffer().as(DType::bf16).sub(ranges[param].first, ranges[param].second);
  }

  std::vector<std::pair<std::uint64_t, std::uint64_t>> ranges;  // first, count
  libswap::DeviceMemory gradients, weights;
};

// What does not depend on the state's home.
struct Setting {
  Bench& bench;
  const Scale& scale;
  const Trainer& trainer;
  libswap::IoQueue& io;
  libswap::SwapDirectory& directory;
};

struct Times {
  double all = 0, begin = 0, caller_cpu = 0;
};

Result<Times> step(Engine& engine, const Trainer& trainer) {
  const auto begin = std::chrono::steady_clock::now();
  const double cpu = thread_cpu_seconds();
  for (std::uint32_t i = 0; i < trainer.ranges.size(); ++i)
    EBB_TRY(engine.gradient_ready(i, trainer.gradient(i)));
  EBB_TRY(engine.begin_step({.max_norm = 1}));
  Times times{.begin = libswap::seconds_since(begin)};
  EBB_TRY_ASSIGN(const libmuon::StepResult result, engine.wait_step());
  times.all = libswap::seconds_since(begin);
  times.caller_cpu = thread_cpu_seconds() - cpu;
  if (result.skipped) return Error{Code::corrupt, "a step found a gradient that is not finite"};
  return times;
}

float initial_weight(std::uint64_t param, std::uint64_t element) {
  const auto mixed = static_cast<std::uint32_t>((param + 1) * 2654435761u + element * 2246822519u);
  return static_cast<float>(static_cast<std::int32_t>(mixed)) * 0x1p-35f;
}

Result<Stepped> measure_home(const Setting& in, Tier home, const char* name) {
  EBB_TRY_ASSIGN(const EngineConfig config, config_of(in.bench, in.scale, home));
  EBB_TRY_ASSIGN(const auto plan, Engine::plan(config, Rank{0}, libmuon::Side::device));
  const auto ranks = libmuon::make_thread_ranks(1);
  const auto initial = [](std::uint32_t param, FlatRange range, std::span<float> into) {
    for (std::uint64_t i = 0; i < into.size(); ++i)
      into[i] = initial_weight(param, range.first + i);
  };
  EBB_TRY_ASSIGN(const auto engine,
                 Engine::open(config, *ranks[0], in.io, in.directory, {.initial = initial}));
  for (std::uint32_t i = 0; i < config.model.params.size(); ++i)
    EBB_TRY(engine->bind_weights(i, in.trainer.weight(i)));
  EBB_TRY(engine->install_weights());
  Stepped found{.home = name,
                .matrices = in.scale.stepped.matrices(),
                .planned_read = plan.step_read_bytes,
                .planned_written = plan.step_written_bytes,
                .state_bytes = plan.state_bytes};
  found.seconds = found.begin_s = found.caller_cpu = std::numeric_limits<double>::infinity();
  EBB_TRY(step(*engine, in.trainer));
  const libmuon::EngineStats before = engine->stats();
  for (std::uint64_t i = 0; i < in.scale.steps; ++i) {
    EBB_TRY_ASSIGN(const Times times, step(*engine, in.trainer));
    found.seconds = std::min(found.seconds, times.all);
    found.begin_s = std::min(found.begin_s, times.begin);
    found.caller_cpu = std::min(found.caller_cpu, times.caller_cpu);
  }
  const libmuon::EngineStats after = engine->stats();
  found.read_bytes = (after.read_bytes - before.read_bytes) / in.scale.steps;
  found.written_bytes = (after.written_bytes - before.written_bytes) / in.scale.steps;
  found.weights = in.trainer.weights_crc();
  return found;
}

// What the disk gives to plain reads and writes of as many bytes, both at once, as the step's are.
Result<> measure_disk_alone(const Setting& in, const std::filesystem::path& directory,
                            Stepped& found) {
  const auto tile = static_cast<std::uint32_t>(in.scale.tile_bytes);
  EBB_TRY_ASSIGN(const auto file,
                 libswap::ProbeFile::make(in.io, directory, {.half_bytes = found.read_bytes}));
  double rate = 0;
  for (const auto& [operation, depth] :
       {std::pair{tile / 4, 16u}, std::pair{tile, 4u}, std::pair{tile, 8u}}) {
    EBB_TRY_ASSIGN(const double one, file->measure(libswap::ProbeFile::Traffic::mixed,
                                                   {.operation_bytes = operation, .depth = depth}));
    rate = std::max(rate, one);
  }
  found.io_s = static_cast<double>(found.read_bytes + found.written_bytes) / rate;
  if (file->info().in_memory)
    found.io_note = directory.string() + " is in memory";
  else if (!file->info().direct)
    found.io_note = directory.string() + ": its file system has no O_DIRECT";
  return {};
}

Result<> same_bits(const std::vector<Stepped>& steps) {
  for (const Stepped& one : steps) {
    if (one.weights != steps.front().weights)
      return Error{Code::corrupt,
                   compose("the same steps left other weights with state on {} than on {}",
                           one.home, steps.front().home)};
    if (one.read_bytes != one.planned_read || one.written_bytes != one.planned_written)
      return Error{Code::corrupt,
                   compose("state on {}: a step read {} bytes and wrote {}, planned were {} and {}",
                           one.home, one.read_bytes, one.written_bytes, one.planned_read,
                           one.planned_written)};
  }
  return {};
}

}  // namespace

Result<> measure_steps(Bench& bench, const Scale& scale, const std::filesystem::path& directory,
                       Findings& findings) {
  EBB_TRY_ASSIGN(const auto model, model_spec(scale.stepped));
  EBB_TRY_ASSIGN(const Trainer trainer, Trainer::make(bench, model));
  EBB_TRY_ASSIGN(auto backend, libswap::open_backend(libswap::BackendChoice::automatic));
  findings.disk = std::string(backend.backend->name());
  EBB_TRY_ASSIGN(const auto notes, libswap::io_notes(*backend.backend, directory));
  for (const std::string& note : notes) findings.disk += "; " + note;
  EBB_TRY_ASSIGN(const auto io, libswap::IoQueue::start(std::move(backend.backend), {}));
  EBB_TRY_ASSIGN(const auto swap, libswap::SwapDirectory::open(*io, directory / "store"));
  const Setting in{bench, scale, trainer, *io, *swap};
  const Orthogonalized* const alone =
      findings.find(std::string("ebb ") + kPreset, scale.stepped.text());
  const Moved* const both_ways = findings.find_moved(kBothWays);
  // Nothing is committed behind the store's beginning: each begins there.
  for (const auto& [home, name] : {std::pair{Tier::nvme, "nvme"}, std::pair{Tier::host, "host"},
                                   std::pair{Tier::device, "device"}}) {
    EBB_TRY_ASSIGN(Stepped found, measure_home(in, home, name));
    if (alone != nullptr) found.compute_s = alone->seconds;
    if (home == Tier::nvme) EBB_TRY(measure_disk_alone(in, directory, found));
    if (home == Tier::host && both_ways != nullptr)
      found.io_s = 2 * static_cast<double>(found.state_bytes) / both_ways->rate();
    findings.steps.push_back(std::move(found));
    EBB_TRY(bench.device->status());
  }
  return same_bits(findings.steps);
}

}  // namespace ebb::gpu
