// The kernels of the host: elementwise work is done when a call returns, by the caller and the
// pool; Newton-Schulz is a chain of the pool.
#include <algorithm>
#include <array>
#include <cstring>
#include <vector>

#include "ebb/libmuon/kernels/kernels.h"
#include "ebb/libmuon/kernels/table.h"

namespace ebb::libmuon {
namespace {

using libswap::Buffer;
using libswap::Event;
using libswap::Lane;
using libswap::TraceSpan;

// Elementwise work is cut for the pool at a fixed size: bits do not depend on the cut.
constexpr std::uint64_t kPoolElems = 64u << 10;
// Of a piece that is widened: on the stack, and in the cache.
constexpr std::uint64_t kWidened = 4096;

// Calls job(first, values) with pieces of the buffer's elements as fp32, whatever they are kept as:
// `values` are those from `first` on.
template <typename Job>
void in_fp32(const Buffer& buffer, const Job& job) {
  if (buffer.dtype == DType::f32)
    return job(std::uint64_t{0}, std::span<const float>(buffer.floats()));
  std::array<float, kWidened> wide;
  for (std::uint64_t first = 0; first < buffer.elems; first += wide.size()) {
    const std::uint64_t count = std::min<std::uint64_t>(wide.size(), buffer.elems - first);
    const auto values = std::span(wide).first(count);
    widen(buffer.bf16s().subspan(first, count), values);
    job(first, std::span<const float>(values));
  }
}

class HostKernels : public Kernels {
 public:
  explicit HostKernels(const KernelsFor& what) : what_(what) {}

  libswap::Device* device() const override { return nullptr; }

  // The sum is exact, so it may be cut anywhere; small pieces are still in the cache when they are
  // read a second time.
  Event look(std::span<const LookRange> ranges, Buffer found, After after) override {
    wait(after, "gradients");
    struct Piece {
      Buffer g;
      const LookRange* range = nullptr;
    };
    struct Found {
      ExactSum sum;
      double largest = 0;
    };
    std::vector<Piece> pieces;
    for (const LookRange& range : ranges)
      for (std::uint64_t first = 0; first < range.g.elems; first += kPoolElems)
        pieces.push_back({range.g.sub(first, std::min(kPoolElems, range.g.elems - first)), &range});
    std::vector<Found> parts(pieces.size());
    what_.pool.run(pieces.size(), [&](std::size_t i) {
      const auto& [g, range] = pieces[i];
      auto& [sum, largest] = parts[i];
      in_fp32(g, [&](std::uint64_t, std::span<const float> values) {
        largest = std::max(largest, static_cast<double>(largest_magnitude(values)) / range->limit);
        if (range->in_norm) sum.add(values);
      });
    });
    ExactSum sum;
    Look all;
    for (const Found& part : parts) {
      sum.merge(part.sum);
      all.largest = std::max(all.largest, part.largest);
    }
    all.squares = sum.limbs;
    EBB_CHECK(found.size() == sizeof(Look));
    std::memcpy(found.bytes().data(), &all, sizeof(Look));
    return {};
  }

  Event add(std::span<const AddRange> ranges, After after) override {
    wait(after, "gradients");
    for (const AddRange& range : ranges)
      in_pieces(range.g, [&](std::uint64_t first, std::span<const float> g) {
        const auto sum = piece(range.sum, first, g.size());
        if (range.first)
          std::ranges::copy(g, sum.begin());
        else
          add_range(g, sum);
      });
    return {};
  }

  Event prepare(std::span<const PrepareRange> ranges, float grad_scale, After after) override {
    wait(after);
    const TraceSpan trace(what_.trace, what_.rank, Lane::compute, "momentum");
    for (const PrepareRange& range : ranges) {
      const auto prepare_as = [&](const auto m) {
        in_pieces_of(range.g, range.u.elems, [&](std::uint64_t first, std::span<const float> g) {
          momentum_range(*range.spec, grad_scale, g, m.subspan(first, g.size()),
                         piece(range.u, first, g.size()));
        });
      };
      if (range.m.dtype == DType::bf16)
        prepare_as(range.m.bf16s());
      else
        prepare_as(range.m.floats());
    }
    return {};
  }

  Event finish(std::span<const FinishRange> ranges, After after) override {
    wait(after);
    const TraceSpan trace(what_.trace, what_.rank, Lane::compute, "apply");
    for (const FinishRange& range : ranges)
      in_pieces(range.o, [&](std::uint64_t first, std::span<const float> o) {
        if (range.w.empty()) return apply_to_zeros(range, first, o);
        const auto w = piece(range.w, first, o.size());
        apply_range(*range.spec, range.scale, o, w);
        copy_out(w, range.out, first);
      });
    return {};
  }

  Event hand_out(std::span<const OutRange> ranges, After after) override {
    wait(after);
    for (const OutRange& range : ranges)
      in_pieces(range.w, [&](std::uint64_t first, std::span<const float> w) {
        copy_out(w, range.out, first);
      });
    return {};
  }

  Event adamw(std::span<const AdamRange> ranges, float grad_scale, After after) override {
    wait(after);
    const TraceSpan trace(what_.trace, what_.rank, Lane::compute, "AdamW");
    for (const AdamRange& range : ranges)
      in_pieces_of(range.g, range.w.elems, [&](std::uint64_t first, std::span<const float> g) {
        const auto w = piece(range.w, first, g.size());
        adamw_range(*range.spec, range.step, grad_scale, g, w,
                    piece(range.exp_avg, first, g.size()),
                    piece(range.exp_avg_sq, first, g.size()));
        copy_out(w, range.out, first);
      });
    return {};
  }

  // Matrix after matrix: the pool does chains in order, so that they share the workspace.
  Event orthogonalize(const MatrixBatch& batch, Buffer workspace, After after) override {
    wait(after);
    Event done;
    const std::uint64_t elems = batch.matrix.span();
    for (std::uint64_t i = 0; i < batch.count; ++i)
      done = what_.pool.begin(newton_schulz(*batch.spec, batch.bf16, batch.matrix,
                                            piece(batch.u, i * elems, elems), workspace.bytes()));
    return done;
  }

 private:
  static std::span<float> piece(const Buffer& buffer, std::uint64_t first, std::uint64_t count) {
    return buffer.floats().subspan(first, count);
  }

  static void copy_out(std::span<const float> w, const Buffer& out, std::uint64_t first) {
    if (out.empty()) return;
    if (out.dtype == DType::bf16)
      narrow(w, out.bf16s().subspan(first, w.size()));
    else
      std::ranges::copy(w, piece(out, first, w.size()).begin());
  }

  static void apply_to_zeros(const FinishRange& range, std::uint64_t first,
                             std::span<const float> o) {
    std::array<float, kWidened> w;
    for (std::uint64_t i = 0; i < o.size(); i += w.size()) {
      const auto some = o.subspan(i, std::min<std::uint64_t>(w.size(), o.size() - i));
      const auto from_zero = std::span(w).first(some.size());
      std::ranges::fill(from_zero, 0.0f);
      apply_range(*range.spec, range.scale, some, from_zero);
      copy_out(from_zero, range.out, first + i);
    }
  }

  // As in_fp32(), by the pool.
  template <typename Job>
  void in_pieces(const Buffer& numbers, const Job& job) {
    what_.pool.run(formats::div_ceil(numbers.elems, kPoolElems), [&](std::size_t i) {
      const std::uint64_t begin = i * kPoolElems;
      in_fp32(
          numbers.sub(begin, std::min(kPoolElems, numbers.elems - begin)),
          [&](std::uint64_t first, std::span<const float> values) { job(begin + first, values); });
    });
  }

  // The same of a gradient, of `elems` zeros where it is empty.
  template <typename Job>
  void in_pieces_of(const Buffer& gradient, std::uint64_t elems, const Job& job) {
    if (!gradient.empty()) return in_pieces(gradient, job);
    static constexpr std::array<float, kWidened> kZeros = {};
    what_.pool.run(formats::div_ceil(elems, kWidened), [&](std::size_t i) {
      const std::uint64_t first = i * kWidened;
      job(first, std::span(kZeros).first(std::min(kWidened, elems - first)));
    });
  }

  // `what` others do meanwhile.
  void wait(After after, const char* what = "Newton-Schulz") {
    for (const Event& event : after) {
      if (event.passed()) continue;
      const TraceSpan trace(what_.trace, what_.rank, Lane::compute, what);
      what_.pool.help_until(event);
    }
  }

  const KernelsFor what_;
};

}  // namespace

std::unique_ptr<Kernels> make_host_kernels(const KernelsFor& what) {
  return std::make_unique<HostKernels>(what);
}

}  // namespace ebb::libmuon
