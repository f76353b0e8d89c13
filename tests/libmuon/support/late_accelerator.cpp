#include "tests/libmuon/support/late_accelerator.h"

#include <utility>
#include <vector>

#include "ebb/libmuon/kernels/kernels.h"

namespace ebb::test {
namespace {

using libmuon::AdamRange;
using libmuon::AddRange;
using libmuon::DecayRange;
using libmuon::FinishRange;
using libmuon::LookRange;
using libmuon::MatrixBatch;
using libmuon::NormaliseRange;
using libmuon::OutRange;
using libmuon::PrepareRange;
using libmuon::TakeRange;
using libswap::Buffer;
using libswap::Event;

class LateKernels : public libmuon::Kernels {
 public:
  LateKernels(libswap::LateDevice& device, const libmuon::KernelsFor& what)
      : device_(device), pool_(what.pool), host_(libmuon::make_host_kernels(what)) {}

  libswap::Device* device() const override { return &device_; }

  Event look(std::span<const LookRange> ranges, Buffer found, After after) override {
    return later(after, [this, list = opened(ranges), here = opened(found)] {
      host_->look(list, here, {});
    });
  }
  Event decay(std::span<const DecayRange> ranges, After after) override {
    return later(after, [this, list = opened(ranges)] { host_->decay(list, {}); });
  }
  Event prepare(std::span<const PrepareRange> ranges, float grad_scale, After after) override {
    return later(
        after, [this, grad_scale, list = opened(ranges)] { host_->prepare(list, grad_scale, {}); });
  }
  Event finish(std::span<const FinishRange> ranges, After after) override {
    return later(after, [this, list = opened(ranges)] { host_->finish(list, {}); });
  }
  Event normalise(std::span<const NormaliseRange> ranges, After after) override {
    return later(after, [this, list = opened(ranges)] { host_->normalise(list, {}); });
  }
  Event add(std::span<const AddRange> ranges, After after) override {
    return later(after, [this, list = opened(ranges)] { host_->add(list, {}); });
  }
  Event hand_out(std::span<const OutRange> ranges, After after) override {
    return later(after, [this, list = opened(ranges)] { host_->hand_out(list, {}); });
  }
  Event take(std::span<const TakeRange> ranges, After after) override {
    return later(after, [this, list = opened(ranges)] { host_->take(list, {}); });
  }
  Event adamw(std::span<const AdamRange> ranges, float grad_scale, After after) override {
    return later(after,
                 [this, grad_scale, list = opened(ranges)] { host_->adamw(list, grad_scale, {}); });
  }
  Event orthogonalize(const MatrixBatch& batch, Buffer workspace, After after) override {
    return later(after, [this, here = opened(batch), scratch = opened(workspace)] {
      pool_.help_until(host_->orthogonalize(here, scratch, {}));
    });
  }

 private:
  template <typename Work>
  Event later(After after, Work work) {
    return device_.compute(after, std::move(work));
  }

  // As the host sees it.
  Buffer opened(const Buffer& buffer) const {
    if (buffer.empty()) return {};
    return {device_.open(buffer).data(), buffer.dtype, buffer.elems};
  }
  LookRange opened(const LookRange& range) const {
    return {opened(range.g), range.limit, range.in_norm};
  }
  AddRange opened(const AddRange& range) const {
    return {opened(range.g), opened(range.sum), range.first};
  }
  PrepareRange opened(const PrepareRange& range) const {
    return {range.spec,           opened(range.g), opened(range.m),    opened(range.u),
            opened(range.scales), range.block,     opened(range.decay)};
  }
  FinishRange opened(const FinishRange& range) const {
    return {range.spec,      range.scale,       opened(range.o),
            opened(range.w), opened(range.out), opened(range.high)};
  }
  OutRange opened(const OutRange& range) const { return {opened(range.w), opened(range.out)}; }
  TakeRange opened(const TakeRange& range) const { return {opened(range.given), opened(range.w)}; }
  AdamRange opened(const AdamRange& range) const {
    return {range.spec,
            range.step,
            opened(range.g),
            opened(range.w),
            opened(range.exp_avg),
            opened(range.exp_avg_sq),
            opened(range.out),
            opened(range.high)};
  }
  MatrixBatch opened(const MatrixBatch& batch) const {
    return {batch.spec,   batch.matrix,     batch.count,
            batch.bf16,   opened(batch.u),  opened(batch.non_finite),
            batch.number, opened(batch.in), opened(batch.out)};
  }
  DecayRange opened(const DecayRange& range) const {
    return {range.spec, opened(range.w), opened(range.u)};
  }
  NormaliseRange opened(const NormaliseRange& range) const {
    return {opened(range.o), opened(range.v)};
  }
  template <typename Range>
  std::vector<Range> opened(std::span<const Range> ranges) const {
    std::vector<Range> all;
    for (const Range& range : ranges) all.push_back(opened(range));
    return all;
  }

  libswap::LateDevice& device_;
  libswap::Pool& pool_;
  std::unique_ptr<libmuon::Kernels> host_;
};

}  // namespace

std::string LateAccelerator::fingerprint(std::uint32_t /*choice*/) const {
  return libmuon::kernel_fingerprint(std::nullopt);
}

std::uint64_t LateAccelerator::workspace_bytes(const libmuon::MuonSpec& spec,
                                               const libmuon::Block& matrix, std::uint64_t) const {
  return libmuon::newton_schulz_scratch_bytes(spec, matrix.rows(), matrix.cols);
}

Result<std::unique_ptr<libmuon::Kernels>> LateAccelerator::kernels(
    const libmuon::KernelsFor& what) {
  std::unique_ptr<libmuon::Kernels> made = std::make_unique<LateKernels>(device_, what);
  return made;
}

}  // namespace ebb::test
