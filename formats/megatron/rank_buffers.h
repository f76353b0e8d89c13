// Where Megatron's distributed optimizer lays a model's parameters in a flat buffer, as
// distrib_optim.pt keeps it: its buckets one after the other, without the padding behind each.
// Pure. Source: megatron-core 0.19.2 (optimizer/distrib_optimizer.py,
// _compute_per_buffer_param_layout and get_parameter_state_dp_zero). Internal to formats/megatron.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace ebb::formats::megatron {

struct BufferedParam {
  std::uint64_t elems = 0;
  bool shared = false;  // with another stage: alone in its bucket
};

struct BufferRule {
  std::uint64_t alignment = 64;         // of each parameter's first element; 1 before 2024
  std::optional<std::uint64_t> bucket;  // elements from which on one is full; nullopt: all in one
  bool operator==(const BufferRule&) const = default;
};

struct BufferLayout {
  std::vector<std::uint64_t> first;  // of each parameter
  std::uint64_t elems = 0;
  bool operator==(const BufferLayout&) const = default;
};

// `params`: in the model's order, of which the buffer has the reverse.
BufferLayout buffer_layout(std::span<const BufferedParam> params, const BufferRule& rule);

}  // namespace ebb::formats::megatron
