#include "ebb/libmuon/plan/traffic.h"

namespace ebb::libmuon {

std::array<OthersTraffic, 3> traffic_of_others(std::uint64_t elems, std::uint32_t ranks,
                                               std::uint64_t elem_bytes) {
  // A ring over N ranks that brings each of them what it lacks of P elements.
  const std::uint64_t gathered = elem_bytes * elems * (ranks - 1);
  return {{{"DeepSpeed ZeRO-1/2", "sP(N-1)", gathered},
           {"DeepSpeed ZeRO-3", "4sP(N-1) a micro-batch", 4 * gathered},
           {"Megatron-FSDP", "sP(N-1)", gathered}}};
}

}  // namespace ebb::libmuon
