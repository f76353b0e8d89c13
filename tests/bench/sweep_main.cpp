// ebb-sweep: how fast a sweep over a lot of AdamW state is, as a share of what bounds it in the
// same minute: the disk, as a plain reader and writer has it, or the processors, which take a step
// that is all in memory and checksums of what moves.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <optional>
#include <thread>
#include <vector>

#include "ebb/formats/core/bytes.h"
#include "ebb/formats/core/crc32c.h"
#include "ebb/libmuon/step/engine.h"
#include "ebb/libswap/queue/disk_probe.h"
#include "ebb/libswap/read/in_parallel.h"
#include "ebb/libswap/sys/process.h"
#include "ebb/libswap/testing/paced_backend.h"
#include "tools/cli/result_file.h"
#include "tools/cli/run.h"
#include "tools/cli/text.h"

namespace ebb::bench {
namespace {

namespace fs = std::filesystem;
using tools::Exit;
using tools::Flag;
using tools::FlagType;
using Clock = std::chrono::steady_clock;

constexpr std::uint64_t kInMemory = 4;  // a quarter of the state stands for all of it

constexpr std::array kFlags = {
    Flag{.name = "swap",
         .type = FlagType::text,
         .metavar = "DIR",
         .line = "where state is paged (required)"},
    Flag{.name = "state",
         .type = FlagType::size,
         .metavar = "SIZE",
         .default_value = "1GiB",
         .line = "fp32 master, exp_avg and exp_avg_sq together"},
    Flag{.name = "paced",
         .type = FlagType::size,
         .metavar = "RATE",
         .line = "DIR is in memory: as if on a disk of RATE bytes a second, with stalls"},
    Flag{.name = "rounds",
         .type = FlagType::count,
         .metavar = "N",
         .default_value = "3",
         .line = "probes of the disk and sweeps in turn"},
    Flag{.name = "json", .type = FlagType::text, .metavar = "FILE", .line = "results for programs"},
};

constexpr tools::Program kProgram = {
    .name = "ebb-sweep",
    .summary = "Times AdamW sweeps over state paged through a sixteenth of its size.",
    .positionals = {},
    .flags = kFlags,
    .examples = {},
    .closing = "Makes two stores in DIR and leaves them there.",
    .formats = tools::Formats::none,
    .exits = tools::kPlainExits,
};

libmuon::EngineConfig config_for(std::uint64_t state_bytes, std::uint64_t budget_bytes) {
  constexpr std::uint64_t kColumns = 1024, kStates = 3;
  const std::uint64_t rows =
      std::max<std::uint64_t>(1, state_bytes / (kColumns * kStates * sizeof(float)));
  libmuon::EngineConfig config;
  config.model.groups = {libmuon::AdamSpec()};
  config.model.params = {{"swept.weight", {rows, kColumns}, 0}};
  config.partition.gradients = {.policy = Policy::replicated};
  config.partition.weights = {.policy = Policy::replicated};
  config.budget_bytes = budget_bytes;
  config.slots = 2;
  config.threads = std::max(1u, std::thread::hardware_concurrency());
  return config;
}

// An engine and what a step of it needs.
struct Stepped {
  std::unique_ptr<libswap::SwapDirectory> directory;
  std::vector<std::unique_ptr<libmuon::Communicator>> ranks = libmuon::make_thread_ranks(1);
  std::unique_ptr<libmuon::Engine> engine;
  std::vector<float> gradient, weights;

  static Result<std::unique_ptr<Stepped>> open(libswap::IoQueue& io, const fs::path& swap,
                                               const libmuon::EngineConfig& config) {
    auto one = std::make_unique<Stepped>();
    EBB_TRY_ASSIGN(one->directory, libswap::SwapDirectory::open(io, swap));
    const auto zeros = [](std::uint32_t, FlatRange, std::span<float> into) {
      std::fill(into.begin(), into.end(), 0.0f);
    };
    EBB_TRY_ASSIGN(one->engine, libmuon::Engine::open(config, *one->ranks[0], io, *one->directory,
                                                      {.initial = zeros}));
    one->gradient.resize(formats::volume(config.model.params[0].shape));
    for (std::size_t i = 0; i < one->gradient.size(); ++i)
      one->gradient[i] = static_cast<float>(i % 1024) / 1024.0f - 0.5f;
    one->weights.resize(one->gradient.size());
    EBB_TRY(one->engine->bind_weights(0, one->weights));
    return one;
  }

  Result<double> step_seconds() {
    EBB_TRY(engine->gradient_ready(0, gradient));
    const auto begin = Clock::now();
    EBB_TRY(engine->step({}));
    return std::chrono::duration<double>(Clock::now() - begin).count();
  }
};

// CRC32C of so many bytes, by all threads, out of buffers that no cache holds.
Result<double> checksum_seconds(std::uint64_t bytes, std::uint32_t threads) {
  constexpr std::uint64_t kBuffer = 64 * formats::MiB;
  const auto begin = Clock::now();
  EBB_TRY(libswap::in_parallel(threads, [&](const std::atomic<bool>&) -> Result<> {
    const formats::ByteVector buffer(kBuffer);
    std::uint32_t crc = 0;
    for (std::uint64_t left = bytes / threads; left > 0; left -= std::min(left, kBuffer))
      crc = formats::crc32c(crc, ByteView(buffer).first(std::min(left, kBuffer)));
    return crc == 1 ? Result<>(Error{Code::state, "unlikely"}) : Result<>();
  }));
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

struct Round {
  double sweep_s = 0;
  double disk_s = 0;        // of the same bytes, alone
  double processors_s = 0;  // of the same work, without a disk
  std::uint64_t moved = 0;
};

Result<Round> measure(libswap::IoQueue& io, const fs::path& swap, Stepped& paged,
                      Stepped& in_memory, std::uint64_t probe_bytes) {
  Round round;
  EBB_TRY_ASSIGN(const auto disk, libswap::measure_disk(io, swap, {.bytes = probe_bytes}));
  const auto before = paged.engine->stats();
  EBB_TRY_ASSIGN(round.sweep_s, paged.step_seconds());
  const auto after = paged.engine->stats();
  round.moved = after.read_bytes - before.read_bytes + after.written_bytes - before.written_bytes;
  round.disk_s = static_cast<double>(round.moved) / disk.mixed;
  EBB_TRY_ASSIGN(const double step_s, in_memory.step_seconds());
  EBB_TRY_ASSIGN(const double checksums_s,
                 checksum_seconds(round.moved, std::max(1u, std::thread::hardware_concurrency())));
  round.processors_s = kInMemory * step_s + checksums_s;
  return round;
}

// The disk under the folder, or what stands for one.
Result<std::unique_ptr<libswap::IoBackend>> open_disk(const fs::path& swap,
                                                      std::optional<std::uint64_t> paced) {
  constexpr double kStallsPerSecond = 5;
  EBB_TRY_ASSIGN(auto opened, libswap::open_backend(libswap::BackendChoice::automatic));
  if (!paced) return std::move(opened.backend);
  return libswap::make_paced_backend(std::move(opened.backend),
                                     {{.path_part = swap.string(),
                                       .bytes_per_s = static_cast<double>(*paced),
                                       .stalls_per_s = kStallsPerSecond}});
}

// The rounds that other programs disturbed least.
Round best_of(const std::vector<Round>& rounds) {
  Round best = rounds.front();
  for (const Round& round : rounds) {
    best.sweep_s = std::min(best.sweep_s, round.sweep_s);
    best.disk_s = std::min(best.disk_s, round.disk_s);
    best.processors_s = std::min(best.processors_s, round.processors_s);
  }
  return best;
}

Result<> say(tools::Console& console, const tools::ResultFile& results, std::uint64_t state,
             const Round& best) {
  const bool disk = best.disk_s >= best.processors_s;
  const double share = std::max(best.disk_s, best.processors_s) / best.sweep_s;
  const auto rate = [&](double seconds) { return static_cast<double>(best.moved) / seconds / 1e9; };
  std::array<char, 400> text{};
  std::snprintf(text.data(), text.size(),
                "sweep over %s: %.2f s, %.2f GB/s read and written; the disk alone %.2f s, %.2f "
                "GB/s; the processors alone %.2f s; of what bounds it, the %s: %.2f\n",
                tools::bytes_text(state).c_str(), best.sweep_s, rate(best.sweep_s), best.disk_s,
                rate(best.disk_s), best.processors_s, disk ? "disk" : "processors", share);
  console.print(text.data());
  if (results.path.empty()) return {};
  std::snprintf(text.data(), text.size(),
                "{\n  \"state_bytes\": %llu,\n  \"sweep_s\": %.9g,\n  \"disk_s\": %.9g,\n"
                "  \"processors_s\": %.9g,\n  \"disk_bytes_per_s\": %.9g,\n"
                "  \"share_of_bound\": %.9g\n}\n",
                static_cast<unsigned long long>(state), best.sweep_s, best.disk_s,
                best.processors_s, 1e9 * rate(best.disk_s), share);
  return write_result(results, text.data());
}

Result<Exit> work(tools::Console& console, const tools::Arguments& arguments) {
  if (!arguments.has("swap"))
    return Error{Code::usage, "--swap DIR is missing: where state is to be paged", "ebb-sweep -h"};
  const fs::path swap = *arguments.text("swap");
  const tools::ResultFile results{"--json", arguments.text("json").value_or(""),
                                  "result of ebb-sweep", "{\n  \"state_bytes\": "};
  if (arguments.has("json")) EBB_TRY(check_replaceable(results));
  const std::uint64_t state = arguments.size("state").value_or(formats::GiB);
  EBB_TRY_ASSIGN(auto backend, open_disk(swap, arguments.size("paced")));
  EBB_TRY_ASSIGN(const auto io, libswap::IoQueue::start(std::move(backend), {}));
  // Nearly all of it has to move, and nothing.
  EBB_TRY_ASSIGN(const auto paged, Stepped::open(*io, swap, config_for(state, state / 16)));
  EBB_TRY_ASSIGN(const auto in_memory,
                 Stepped::open(*io, swap / "in-memory", config_for(state / kInMemory, state)));
  std::vector<Round> rounds;
  const std::uint64_t wanted = std::max<std::uint64_t>(1, arguments.count("rounds").value_or(3));
  for (std::uint64_t i = 0; i < wanted; ++i) {
    EBB_TRY_ASSIGN(const Round round,
                   measure(*io, swap, *paged, *in_memory, std::min(state / 4, formats::GiB)));
    rounds.push_back(round);
  }
  EBB_TRY(say(console, results, state, best_of(rounds)));
  return Exit::success;
}

}  // namespace

int program_main(int argc, char** argv) { return tools::run_program(kProgram, argc, argv, work); }

}  // namespace ebb::bench

int main(int argc, char** argv) { return ebb::bench::program_main(argc, argv); }
