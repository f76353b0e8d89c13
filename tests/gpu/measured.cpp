#include "tests/gpu/measured.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <functional>
#include <limits>

#include "ebb/libmuon/kernels/kernels.h"
#include "ebb/libmuon/spec/presets.h"
#include "ebb/libswap/sys/process.h"

namespace ebb::gpu {
namespace {

using libmuon::AdamSpec;
using libmuon::MuonSpec;
using libswap::Buffer;
using libswap::Event;

// `call` gives the device work that may begin behind `after`.
double least_seconds(const Rounds& timed, const std::function<Event(const Event& after)>& call) {
  double least = std::numeric_limits<double>::infinity();
  for (int round = 0; round < timed.rounds; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    Event last;
    for (int i = 0; i < timed.calls; ++i) last = call(last);
    last.wait();
    least = std::min(least, libswap::seconds_since(begin) / timed.calls);
  }
  return least;
}

}  // namespace

Result<Bench> Bench::open(const std::string& plugin) {
  Bench bench;
  EBB_TRY_ASSIGN(bench.device, libswap::PluginDevice::open(plugin, 0));
  EBB_TRY_ASSIGN(bench.accelerator, libmuon::make_plugin_accelerator(*bench.device));
  EBB_TRY_ASSIGN(bench.pool, libswap::Pool::start(1));
  EBB_TRY_ASSIGN(bench.kernels, bench.accelerator->kernels({*bench.pool}));
  EBB_TRY_ASSIGN(const auto measured, bench.accelerator->measure());
  bench.choice = measured.choice;
  if (!measured.note.empty()) std::fprintf(stderr, "gpu-check: %s\n", measured.note.c_str());
  return bench;
}

Result<std::vector<Moved>> measure_copies(Bench& bench, std::uint64_t bytes) {
  EBB_TRY_ASSIGN(auto source, libswap::allocate_pinned(bench.device.get(), bytes));
  EBB_TRY_ASSIGN(auto target, libswap::allocate_pinned(bench.device.get(), bytes));
  EBB_TRY_ASSIGN(const auto a, bench.device->allocate(bytes));
  EBB_TRY_ASSIGN(const auto b, bench.device->allocate(bytes));
  const auto copies = [](const Buffer& from, const Buffer& to) {
    return [=](const Event& after) { return libswap::copy(from, to, after); };
  };
  const auto up = copies(source.buffer(), a.buffer());
  const auto down = copies(b.buffer(), target.buffer());
  const auto moved = static_cast<double>(bytes);
  constexpr auto kCopy = Moved::Kind::copy;
  std::vector<Moved> all = {
      {kCopy, "copy up, pinned", least_seconds(bench.timed, up), moved},
      {kCopy, "copy down, pinned", least_seconds(bench.timed, down), moved},
      {kCopy, kBothWays,
       least_seconds(
           bench.timed,
           [&](const Event& after) { return libswap::all_of(std::array{up(after), down(after)}); }),
       2 * moved},
      {kCopy, kInside, least_seconds(bench.timed, copies(a.buffer(), b.buffer())), 2 * moved}};
  EBB_TRY(bench.device->status());
  return all;
}

namespace {

// Not zeros: a norm of them would be quick. As fp32 and as bf16, numbers of magnitudes as gradients
// have them.
void fill(Bench& bench, const Buffer& all) {
  std::vector<std::uint16_t> numbers(std::min<std::uint64_t>(all.size(), 4u << 20) / 2);
  std::uint32_t state = 3;
  for (std::uint16_t& number : numbers) {
    state = state * 1664525u + 1013904223u;
    number = static_cast<std::uint16_t>(0x3b00u | (state >> 16 & 0x81ffu));
  }
  const std::uint64_t size = 2 * numbers.size();
  for (std::uint64_t at = 0; at < all.size(); at += size) {
    const std::uint64_t some = std::min(size, all.size() - at);
    bench.device
        ->copy(libswap::buffer_of(std::as_bytes(std::span(numbers)).first(some)), all.sub(at, some),
               {})
        .wait();
  }
}

}  // namespace

Result<std::vector<Moved>> measure_elementwise(Bench& bench, std::uint64_t elems) {
  EBB_TRY_ASSIGN(const auto memory, bench.device->allocate(elems * 6 * sizeof(float)));
  fill(bench, memory.buffer());
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
  using Kind = Moved::Kind;
  const auto timed = [&](Kind kind, const char* what, double bytes, const auto& call) {
    return Moved{kind, what,
                 least_seconds(bench.timed, [&](const Event& after) { return call(after); }),
                 bytes * n};
  };
  std::vector<Moved> all = {
      timed(Kind::norm, "norm of bf16", 2,
            [&](const Event& after) { return kernels.look(look, found.buffer(), {&after, 1}); }),
      timed(Kind::norm, "norm of fp32", 4,
            [&](const Event& after) { return kernels.look(wide, found.buffer(), {&after, 1}); }),
      timed(Kind::elementwise, "momentum (bf16 g, fp32 m, fp32 u)", 14,
            [&](const Event& after) { return kernels.prepare(prepare, 1.0f, {&after, 1}); }),
      timed(Kind::elementwise, "update (fp32 o, fp32 w, bf16 out)", 14,
            [&](const Event& after) { return kernels.finish(finish, {&after, 1}); }),
      timed(Kind::elementwise, "AdamW (bf16 g, fp32 w, m, v, bf16 out)", 28,
            [&](const Event& after) { return kernels.adamw(adamw, 1.0f, {&after, 1}); })};
  EBB_TRY(bench.device->status());
  return all;
}

Result<Orthogonalized> measure_newton_schulz(Bench& bench, const std::string& preset,
                                             const Batch& batch, std::uint32_t choice) {
  EBB_TRY_ASSIGN(const MuonSpec spec, libmuon::preset(preset));
  const auto block = libmuon::Block::matrix(batch.rows, batch.cols);
  const std::uint64_t elems = batch.count * block.span();
  EBB_TRY_ASSIGN(const auto u, bench.device->allocate(elems * sizeof(float)));
  EBB_TRY_ASSIGN(const auto room, bench.device->allocate(bench.accelerator->workspace_bytes(
                                      spec, block, batch.count)));
  // Zeros would be quick: numbers of no pattern, from the host.
  std::vector<float> numbers(elems);
  std::uint32_t state = 1;
  for (float& number : numbers) {
    state = state * 1664525u + 1013904223u;
    number = static_cast<float>(static_cast<std::int32_t>(state)) * 0x1p-31f;
  }
  const Buffer there = u.buffer().as(DType::f32);
  libswap::copy(libswap::buffer_of(std::span(numbers)), there, {}).wait();
  bench.kernels->choose(choice);
  const bool library = choice != bench.choice;
  Orthogonalized found{library ? kLibrary : "ebb " + preset, batch.text()};
  found.seconds = least_seconds(bench.timed, [&](const Event& after) {
    return bench.kernels->orthogonalize(
        {.spec = &spec, .matrix = block, .count = batch.count, .u = there}, room.buffer(),
        {&after, 1});
  });
  found.flops = standard_flops(batch);
  bench.kernels->choose(bench.choice);
  EBB_TRY(bench.device->status());
  return found;
}

}  // namespace ebb::gpu
