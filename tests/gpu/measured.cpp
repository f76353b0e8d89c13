#include "tests/gpu/measured.h"

#include <algorithm>
#include <chrono>
#include <limits>

#include "ebb/formats/core/units.h"
#include "ebb/libmuon/kernels/kernels.h"
#include "ebb/libmuon/spec/presets.h"
#include "ebb/libswap/sys/aligned_buffer.h"
#include "ebb/libswap/sys/process.h"

namespace ebb::gpu {
namespace {

using libmuon::AdamSpec;
using libmuon::MuonSpec;
using libswap::Buffer;
using libswap::Event;

constexpr int kRounds = 7, kCalls = 8;

// `call` gives the device work that may begin behind `after`.
double least_seconds(const std::function<Event(const Event& after)>& call) {
  double least = std::numeric_limits<double>::infinity();
  for (int round = 0; round < kRounds; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    Event last;
    for (int i = 0; i < kCalls; ++i) last = call(last);
    last.wait();
    least = std::min(least, libswap::seconds_since(begin) / kCalls);
  }
  return least;
}

// Standard form with these iterations: what rates are said in, whichever form computed.
double standard_flops(const MuonSpec& spec, std::uint64_t rows, std::uint64_t cols) {
  const auto m = static_cast<double>(std::min(rows, cols));
  const auto n = static_cast<double>(std::max(rows, cols));
  return static_cast<double>(spec.iterations.size()) * (4 * m * m * n + 2 * m * m * m);
}

}  // namespace

Result<Bench> Bench::open(const std::string& plugin) {
  Bench bench;
  EBB_TRY_ASSIGN(bench.device, libswap::PluginDevice::open(plugin, 0));
  EBB_TRY_ASSIGN(bench.accelerator, libmuon::make_plugin_accelerator(*bench.device));
  EBB_TRY_ASSIGN(bench.pool, libswap::Pool::start(1));
  EBB_TRY_ASSIGN(bench.kernels, bench.accelerator->kernels({*bench.pool}));
  return bench;
}

Result<std::vector<Measured>> measure_copies(Bench& bench) {
  constexpr std::uint64_t kBytes = 256 * formats::MiB;
  EBB_TRY_ASSIGN(auto host, libswap::AlignedBuffer::allocate(kBytes));
  EBB_TRY_ASSIGN(const auto pinned, bench.device->pin(host.bytes()));
  EBB_TRY_ASSIGN(const auto a, bench.device->allocate(kBytes));
  EBB_TRY_ASSIGN(const auto b, bench.device->allocate(kBytes));
  const Buffer here = libswap::buffer_of(host.bytes());
  const auto timed = [&](const char* what, const Buffer& from, const Buffer& to, double bytes) {
    return Measured{what, least_seconds([&](const Event& after) { return copy(from, to, after); }),
                    bytes};
  };
  constexpr auto kMoved = static_cast<double>(kBytes);
  std::vector<Measured> all = {timed("copy up, pinned", here, a.buffer(), kMoved),
                               timed("copy down, pinned", a.buffer(), here, kMoved),
                               timed("copy inside", a.buffer(), b.buffer(), 2 * kMoved)};
  EBB_TRY(bench.device->status());
  return all;
}

Result<std::vector<Measured>> measure_elementwise(Bench& bench, std::uint64_t elems) {
  EBB_TRY_ASSIGN(const auto memory, bench.device->allocate(elems * 6 * sizeof(float)));
  const Buffer floats = memory.buffer().as(DType::f32);
  const auto part = [&](std::uint64_t number) { return floats.sub(number * elems, elems); };
  const auto half = [&](std::uint64_t number) {
    return part(number).as(DType::bf16).sub(0, elems);
  };
  EBB_TRY_ASSIGN(const auto found, bench.device->allocate(sizeof(libmuon::Look)));
  const MuonSpec muon = MuonSpec::keller();
  const AdamSpec adam;
  libmuon::Kernels& kernels = *bench.kernels;
  const std::vector<libmuon::LookRange> look = {{half(0), 1.0, true}},
                                        wide = {{part(0), 1.0, true}};
  const std::vector<libmuon::PrepareRange> prepare = {{&muon, half(0), part(1), part(2)}};
  const std::vector<libmuon::FinishRange> finish = {{&muon, 1, part(2), part(3), half(4)}};
  const std::vector<libmuon::AdamRange> adamw = {
      {&adam, 3, half(0), part(3), part(1), part(2), half(4)}};
  const auto n = static_cast<double>(elems);
  const auto timed = [&](const char* what, double bytes, const auto& call) {
    return Measured{what, least_seconds([&](const Event& after) { return call(after); }),
                    bytes * n};
  };
  std::vector<Measured> all = {
      timed("norm of bf16", 2,
            [&](const Event& after) { return kernels.look(look, found.buffer(), {&after, 1}); }),
      timed("norm of fp32", 4,
            [&](const Event& after) { return kernels.look(wide, found.buffer(), {&after, 1}); }),
      timed("momentum (bf16 g, fp32 m, fp32 u)", 14,
            [&](const Event& after) { return kernels.prepare(prepare, 1.0f, {&after, 1}); }),
      timed("update (fp32 o, fp32 w, bf16 out)", 14,
            [&](const Event& after) { return kernels.finish(finish, {&after, 1}); }),
      timed("AdamW (bf16 g, fp32 w, m, v, bf16 out)", 28,
            [&](const Event& after) { return kernels.adamw(adamw, 1.0f, {&after, 1}); })};
  EBB_TRY(bench.device->status());
  return all;
}

Result<Measured> measure_newton_schulz(Bench& bench, const std::string& preset, std::uint64_t rows,
                                       std::uint64_t cols, std::uint64_t count) {
  EBB_TRY_ASSIGN(const MuonSpec spec, libmuon::preset(preset));
  const auto block = libmuon::Block::matrix(rows, cols);
  EBB_TRY_ASSIGN(const auto u, bench.device->allocate(count * block.span() * sizeof(float)));
  EBB_TRY_ASSIGN(const auto room,
                 bench.device->allocate(bench.accelerator->workspace_bytes(spec, block, count)));
  // Zeros would be quick: numbers of no pattern, from the host.
  std::vector<float> numbers(count * block.span());
  std::uint32_t state = 1;
  for (float& number : numbers) {
    state = state * 1664525u + 1013904223u;
    number = static_cast<float>(static_cast<std::int32_t>(state)) * 0x1p-31f;
  }
  const Buffer there = u.buffer().as(DType::f32);
  const Event filled = libswap::copy(libswap::buffer_of(std::span(numbers)), there, {});
  filled.wait();
  Measured measured{compose("{}: {} x {} x {}", preset, count, rows, cols)};
  measured.seconds = least_seconds([&](const Event& after) {
    return bench.kernels->orthogonalize(
        {.spec = &spec, .matrix = block, .count = count, .u = there}, room.buffer(), {&after, 1});
  });
  measured.flops = static_cast<double>(count) * standard_flops(spec, rows, cols);
  EBB_TRY(bench.device->status());
  return measured;
}

}  // namespace ebb::gpu
