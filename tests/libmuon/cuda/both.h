// The plugin's kernels beside the host's.
#pragma once

#include "ebb/libmuon/kernels/kernels.h"
#include "tests/libmuon/cuda/plugged.h"

namespace ebb::test {

using libmuon::Bf16;
using libmuon::Block;
using libmuon::Kernels;
using libmuon::MuonSpec;
using libswap::Event;

using Halves = There<std::uint16_t>;
using Floats = There<float>;

inline std::vector<std::uint16_t> narrowed(const std::vector<float>& wide) {
  std::vector<std::uint16_t> bits(wide.size());
  libmuon::narrow(wide, bits);
  return bits;
}

struct Both {
  explicit Both(std::uint32_t late_us = 0, std::uint64_t symmetric_from = 0)
      : plugged(late_us, symmetric_from) {
    pool = *libswap::Pool::start(2);
    host = libmuon::make_host_kernels({*pool});
    there = *plugged.accelerator().kernels({*pool});
  }
  Plugged plugged;
  std::unique_ptr<libswap::Pool> pool;
  std::unique_ptr<Kernels> host, there;
};

template <typename T>
void expect_same(There<T>& there, const std::vector<T>& host, const Event& done,
                 const std::string& what) {
  EXPECT_EQ(std::memcmp(there.back(done).data(), host.data(), host.size() * sizeof(T)), 0) << what;
}

inline std::vector<float> on_host(const MuonSpec& spec, const Block& block, std::vector<float> u,
                                  libswap::Pool& pool) {
  libmuon::orthogonalize(spec, Bf16::emulated, block, u, pool);
  return u;
}

inline std::vector<float> on_device(Both& both, const MuonSpec& spec, const Block& block,
                                    const std::vector<float>& u) {
  const std::uint64_t count = u.size() / block.span();
  Floats there(both.plugged.device(), u, DType::f32);
  const auto bytes = both.plugged.accelerator().workspace_bytes(spec, block, count);
  auto room = both.plugged.device().allocate(bytes);
  EXPECT_TRUE(room);
  return there.back(both.there->orthogonalize({&spec, block, count, Bf16::emulated, there.buffer()},
                                              (*room).buffer(), {}));
}

}  // namespace ebb::test
