// Forecast: how long a step will take, before the first one, from short probes of this machine.
// Bytes and memory need no probe: EnginePlan has them exactly.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <utility>

#include "ebb/libmuon/step/engine.h"

namespace ebb::libmuon {

// Seconds of one core; probed on the shapes the model really has.
struct ComputeRates {
  std::map<std::pair<std::uint64_t, std::uint64_t>, double> newton_schulz;  // (rows, cols) -> s
  double muon_elem = 0;   // s per element: norm, momentum, apply
  double adam_elem = 0;   // s per element: norm, AdamW
  double paged_byte = 0;  // s per byte paged in and out: checksums
  double sent_byte = 0;   // s per byte exchanged between ranks of this process
};
// Takes a few hundred milliseconds for a small model: one Newton-Schulz per distinct shape.
ComputeRates probe_compute(const ModelSpec& model);

struct Forecast {
  double compute_s = 0;   // of the busiest core
  double disk_s = 0;      // of all ranks' bytes at the disk's measured limit
  double exchange_s = 0;  // gradients in and weights out
  double step_s = 0;      // the larger of the first two, which overlap, and the exchange
};
// All ranks of `config` on this machine. `disk_bytes_per_s`: mixed reads and writes together.
Result<Forecast> forecast(const EngineConfig& config, const ComputeRates& rates,
                          double disk_bytes_per_s, std::uint32_t cores);

}  // namespace ebb::libmuon
