// An accelerator for tests: the host's kernels on a LateDevice. What they compute is bit for bit
// the host's; when, and in which memory, is the device's.
#pragma once

#include "ebb/libmuon/kernels/table.h"
#include "ebb/libswap/testing/late_device.h"

namespace ebb::test {

class LateAccelerator : public libmuon::Accelerator {
 public:
  explicit LateAccelerator(std::uint64_t seed, std::uint32_t delay_us = 200)
      : device_(seed, delay_us) {}

  libswap::LateDevice& device() override { return device_; }
  bool takes_momentum_in(DType) const override { return true; }  // as the host's kernels do
  std::string fingerprint(std::uint32_t choice) const override;
  bool takes_what_travels() const override { return true; }
  std::uint64_t workspace_bytes(const libmuon::MuonSpec& spec, const libmuon::Block& matrix,
                                std::uint64_t count) const override;
  Result<std::unique_ptr<libmuon::Kernels>> kernels(const libmuon::KernelsFor& what) override;

 private:
  libswap::LateDevice device_;
};

}  // namespace ebb::test
