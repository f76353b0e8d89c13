// Newton-Schulz of a batch of matrices: the sequences of forms.h as work of one stream.
#pragma once

#include "plugins/cuda/products.h"

namespace ebb::cuda {

// Most matrices at once: what the workspace is made for.
inline constexpr std::uint64_t kMostAtOnce = 4096;

// As many as that from the first-th on, or what is left.
libmuon::PlainMatrices part_of(const libmuon::PlainMatrices& matrices, std::uint64_t first);

std::uint64_t newton_schulz_bytes(const libmuon::PlainMatrices& matrices);

// What products are made with.
struct Multiplier {
  Products& products;
  unsigned processors;  // of the device
};

// `workspace`: newton_schulz_bytes() of the device, aligned to 256 bytes.
Answer newton_schulz(const Multiplier& multiplier, const libmuon::PlainMatrices& matrices,
                     std::byte* workspace, cudaStream_t stream, Why* why);

}  // namespace ebb::cuda
