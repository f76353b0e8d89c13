// Which products of bf16 are used.
#pragma once

#include <cstdint>
#include <string_view>

namespace ebb::libmuon {

// How Newton-Schulz with `precision = bf16` multiplies: by products of fp32 of rounded operands, or
// by the processor's products of bf16. Bits differ, errors do not.
enum class Bf16 : std::uint8_t { emulated, real };
constexpr std::string_view name_of(Bf16 bf16) { return bf16 == Bf16::real ? "real" : "emulated"; }

}  // namespace ebb::libmuon
