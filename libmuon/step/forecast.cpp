#include "ebb/libmuon/step/forecast.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "ebb/formats/core/crc32c.h"
#include "ebb/libmuon/kernels/kernels.h"
#include "ebb/libswap/sys/process.h"

namespace ebb::libmuon {
namespace {

constexpr std::size_t kProbeElems = 1u << 20;

// The best of three: a probe must not count another process's turn on the core.
template <typename Work>
double seconds_of(const Work& work) {
  double best = 0;
  for (int round = 0; round < 3; ++round) {
    const auto begin = std::chrono::steady_clock::now();
    work();
    const double took = libswap::seconds_since(begin);
    best = round == 0 ? took : std::min(best, took);
  }
  return best;
}

std::vector<float> some_numbers(std::size_t count) {
  std::vector<float> numbers(count);
  std::uint32_t state = 1;
  for (float& number : numbers) {
    state = state * 1664525u + 1013904223u;
    number = static_cast<float>(state >> 8) * 0x1p-24f - 0.5f;
  }
  return numbers;
}

}  // namespace

ComputeRates probe_compute(const ModelSpec& model) {
  ComputeRates rates;
  libswap::Pool pool;
  const Bf16 bf16 = measure_bf16().bf16;
  for (const ParamSpec& param : model.params) {
    const auto* spec = std::get_if<MuonSpec>(&model.groups[param.group]);
    if (spec == nullptr || param.shape.size() < 2 || !check_split(*spec, param.shape)) continue;
    for (const Block& block : blocks_of(*spec, param.shape)) {
      const std::pair shape(block.rows(), block.cols);
      if (rates.newton_schulz.contains(shape)) continue;
      auto u = some_numbers(block.elems());
      const Block matrix = Block::matrix(block.rows(), block.cols);
      rates.newton_schulz[shape] = seconds_of([&] { orthogonalize(*spec, bf16, matrix, u, pool); });
    }
  }
  const auto g = some_numbers(kProbeElems);
  std::vector<float> a(g), b(g), c(kProbeElems, 1.0f);
  const double norm = seconds_of([&] { ExactSum().add(g); });
  const double muon = seconds_of([&] {
    momentum_range(MuonSpec::keller(), 1, g, a, b);
    apply_range(MuonSpec::keller(), 1, b, c);
  });
  const double adam = seconds_of([&] { adamw_range(AdamSpec{}, 1, 1, g, a, b, c); });
  const double crc =
      seconds_of([&] { c[0] += formats::crc32c(0, std::as_bytes(std::span(g))) != 0; });
  const double copy = seconds_of([&] { std::ranges::copy(g, c.begin()); });
  rates.sent_byte = copy / (kProbeElems * sizeof(float));
  rates.muon_elem = (norm + muon) / kProbeElems;
  rates.adam_elem = (norm + adam) / kProbeElems;
  rates.paged_byte = crc / (kProbeElems * sizeof(float));
  return rates;
}

Result<Forecast> forecast(const EngineConfig& config, const ComputeRates& rates,
                          double disk_bytes_per_s, std::uint32_t cores) {
  double all = 0, busiest = 0, bytes = 0, sent = 0;
  const std::uint32_t world = world_of(config.partition);
  for (std::uint32_t rank = 0; rank < world; ++rank) {
    EBB_TRY_ASSIGN(const StatePlan plan,
                   StatePlan::make(config.model, config.partition, config.tile_bytes, Rank{rank},
                                   config.chunk_bytes, config.dtypes, config.stream_above_bytes));
    EBB_TRY_ASSIGN(const EnginePlan costs, Engine::plan(config, Rank{rank}));
    double seconds = static_cast<double>(plan.adam_elems()) * rates.adam_elem;
    for (std::uint32_t param = 0; param < config.model.params.size(); ++param) {
      if (!plan.muon(param)) continue;
      for (const FlatRange own : plan.own_ranges(param))
        seconds += static_cast<double>(own.count) * rates.muon_elem;
      for (const Block& block :
           blocks_of(muon_spec(config.model, param), config.model.params[param].shape))
        if (plan.computes(param, block.first))
          seconds += rates.newton_schulz.at({block.rows(), block.cols});
    }
    const auto paged = static_cast<double>(costs.step_read_bytes + costs.step_written_bytes);
    seconds += paged * rates.paged_byte;
    bytes += paged;
    sent += static_cast<double>(costs.step_sent_bytes);
    all += seconds;
    busiest = std::max(busiest, seconds);
  }
  Forecast result;
  result.compute_s = std::max(busiest, all / std::max(1u, cores));
  result.disk_s = disk_bytes_per_s > 0 ? bytes / disk_bytes_per_s : 0;
  result.exchange_s = sent * rates.sent_byte / std::max(1u, std::min(cores, world));
  result.step_s = std::max(result.compute_s, result.disk_s) + result.exchange_s;
  return result;
}

}  // namespace ebb::libmuon
