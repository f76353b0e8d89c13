// What Muon's matrices move between ranks in a step beyond what AdamW on the same shards moves
// anyway (its gradients are reduced to them, its new weights gathered from them), in other systems:
// to be read beside what an engine counts.
#pragma once

#include <array>
#include <cstdint>
#include <string_view>

namespace ebb::libmuon {

struct OthersTraffic {
  std::string_view system;
  std::string_view formula;  // P elements of s bytes on N ranks
  std::uint64_t bytes = 0;   // of all ranks together, each byte counted where it is sent
};

// `elems`: of all matrices. `elem_bytes`: of an element as it travels there, gradient, momentum or
// update: 2 where it is bf16. Collectives as rings, which move the least. From their code:
//   DeepSpeed ZeRO-1/2: gradients are all-reduced, not reduce-scattered: each rank has whole ones.
//   DeepSpeed ZeRO-3 (its pull request 7919): the same, and momentum is gathered, updates are
//     gathered, momentum is gathered back; all of it for every micro-batch.
//   Megatron-FSDP (Megatron-LM's pull request 4486): updates are gathered whole, and every rank
//     computes all of them.
std::array<OthersTraffic, 3> traffic_of_others(std::uint64_t elems, std::uint32_t ranks,
                                               std::uint64_t elem_bytes);

}  // namespace ebb::libmuon
