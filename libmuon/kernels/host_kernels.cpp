// The kernels of the host: elementwise work is done when a call returns, by the caller and the
// pool; Newton-Schulz is a chain of the pool.
#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <vector>

#include "ebb/formats/core/halves.h"
#include "ebb/libmuon/kernels/element.h"
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

// Of fp32, bf16 or f16.
void widen_buffer(const Buffer& from, std::span<float> to) {
  if (from.dtype == DType::f32)
    std::ranges::copy(from.floats(), to.begin());
  else if (from.dtype == DType::f16)
    widen_f16(from.f16s(), to);
  else
    widen(from.bf16s(), to);
}

void narrow_to(std::span<const float> from, const Buffer& to) {
  if (to.dtype == DType::f32)
    std::ranges::copy(from, to.floats().begin());
  else if (to.dtype == DType::f16)
    narrow_f16(from, to.f16s());
  else
    narrow(from, to.bf16s());
}

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
    widen_buffer(buffer.sub(first, count), values);
    job(first, std::span<const float>(values));
  }
}

// Calls make(first, values) for pieces of what the buffer is to hold, which are fp32 until it does.
template <typename Make>
void out_of_fp32(const Buffer& buffer, const Make& make) {
  if (buffer.dtype == DType::f32) return make(std::uint64_t{0}, buffer.floats());
  std::array<float, kWidened> wide;
  for (std::uint64_t first = 0; first < buffer.elems; first += wide.size()) {
    const std::uint64_t count = std::min<std::uint64_t>(wide.size(), buffer.elems - first);
    const auto values = std::span(wide).first(count);
    make(first, values);
    narrow_to(values, buffer.sub(first, count));
  }
}

class HostKernels : public Kernels {
 public:
  explicit HostKernels(const KernelsFor& what) : what_(what) {}

  libswap::Device* device() const override { return nullptr; }

  // The sum is exact, so it may be cut anywhere.
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
        const double here = range->in_norm ? sum.add(values) : largest_magnitude(values);
        largest = std::max(largest, here / range->limit);
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

  Event decay(std::span<const DecayRange> ranges, After after) override {
    wait(after);
    for (const DecayRange& range : ranges)
      in_pieces(range.w, [&](std::uint64_t first, std::span<const float> w) {
        decay_range(*range.spec, w, piece(range.u, first, w.size()));
      });
    return {};
  }

  Event prepare(std::span<const PrepareRange> ranges, float grad_scale, After after) override {
    wait(after);
    const TraceSpan trace(what_.trace, what_.rank, Lane::compute, "momentum");
    for (const PrepareRange& range : ranges) {
      if (range.m.dtype == DType::i8) {
        prepare_blocks(range, grad_scale);
        continue;
      }
      const auto prepare_as = [&](const auto m) {
        in_pieces_of(range.g, range.u.elems, [&](std::uint64_t first, std::span<const float> g) {
          out_of_fp32(range.u.sub(first, g.size()), [&](std::uint64_t at, std::span<float> u) {
            take_decay(range, first + at, u);
            const auto some_g = g.subspan(at, u.size());
            const auto some_m = m.subspan(first + at, u.size());
            if (range.recompute)
              update_range(*range.spec, grad_scale, some_g, some_m, u);
            else
              momentum_range(*range.spec, grad_scale, some_g, some_m, u);
          });
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
      in_pieces(range.o, [&](std::uint64_t begin, std::span<const float> o) {
        if (range.w.empty()) return hand_out_update(range, begin, o);
        change_weights(range, {begin, o.size()}, [&](std::uint64_t first, std::span<float> w) {
          apply_range(*range.spec, range.scale, o.subspan(first - begin, w.size()), w);
        });
      });
    return {};
  }

  Event normalise(std::span<const NormaliseRange> ranges, After after) override {
    wait(after);
    const TraceSpan trace(what_.trace, what_.rank, Lane::compute, "second moments");
    for (const auto& [batch, v] : ranges) {
      const std::uint64_t each = v.elems / batch.count;
      for (std::uint64_t i = 0; i < batch.count; ++i) {
        const MatrixBatch one = batch.at(i);
        libmuon::normalise(*one.spec, one.matrix, one.u.floats(), piece(v, i * each, each),
                           what_.pool, non_finite(one));
        if (!one.out.empty()) narrow_to(one.u.floats(), one.out);
      }
    }
    return {};
  }

  Event hand_out(std::span<const OutRange> ranges, After after) override {
    wait(after);
    for (const OutRange& range : ranges) {
      if (range.w.dtype == range.out.dtype) {
        copy_all(range.w, range.out);
        continue;
      }
      if (range.w.dtype == DType::u16 || range.out.dtype == DType::u16) {
        move_lows(range);
        continue;
      }
      in_pieces(range.w, [&](std::uint64_t first, std::span<const float> w) {
        copy_out(w, range.out, first);
      });
    }
    return {};
  }

  Event take(std::span<const TakeRange> ranges, After after) override {
    wait(after);
    for (const TakeRange& range : ranges)
      what_.pool.run(formats::div_ceil(range.w.elems, kPoolElems), [&](std::size_t i) {
        const std::uint64_t first = i * kPoolElems;
        const std::uint64_t count = std::min(kPoolElems, range.w.elems - first);
        const Buffer w = range.w.sub(first, count);
        if (w.dtype == DType::u16) return static_cast<void>(std::ranges::fill(w.u16s(), 0));
        const Buffer given = range.given.sub(first, count);
        if (given.dtype == DType::f32)
          take_all(given.floats(), w.floats());
        else
          take_all(given.bf16s(), w.floats());
      });
    return {};
  }

  Event adamw(std::span<const AdamRange> ranges, float grad_scale, After after) override {
    wait(after);
    const TraceSpan trace(what_.trace, what_.rank, Lane::compute, "AdamW");
    for (const AdamRange& range : ranges)
      in_pieces_of(range.g, range.w.elems, [&](std::uint64_t begin, std::span<const float> g) {
        change_weights(range, {begin, g.size()}, [&](std::uint64_t first, std::span<float> w) {
          adamw_range(*range.spec, range.step, grad_scale, g.subspan(first - begin, w.size()), w,
                      piece(range.exp_avg, first, w.size()),
                      piece(range.exp_avg_sq, first, w.size()));
        });
      });
    return {};
  }

  // Matrix after matrix: the pool does chains in order, so that they share the workspace.
  Event orthogonalize(const MatrixBatch& batch, Buffer workspace, After after) override {
    wait(after);
    Event done;
    for (std::uint64_t i = 0; i < batch.count; ++i) {
      const MatrixBatch one = batch.at(i);
      libswap::Chain chain;
      if (!one.in.empty())
        chain.push_back(in_parallel(one.u.elems, [u = one.u, in = one.in](auto at) {
          widen_buffer(in.sub(at.first, at.count), u.sub(at.first, at.count).floats());
        }));
      for (libswap::Stage& stage : newton_schulz(*one.spec, one.bf16, one.matrix, one.u.floats(),
                                                 workspace.bytes(), non_finite(one)))
        chain.push_back(std::move(stage));
      if (!one.out.empty())
        chain.push_back(in_parallel(one.u.elems, [u = one.u, out = one.out](auto at) {
          narrow_to(u.sub(at.first, at.count).floats(), out.sub(at.first, at.count));
        }));
      done = what_.pool.begin(std::move(chain));
    }
    return done;
  }

 private:
  static NonFinite non_finite(const MatrixBatch& one) {
    if (one.non_finite.empty()) return {};
    EBB_CHECK(one.non_finite.size() == sizeof(std::uint32_t));
    return {reinterpret_cast<std::uint32_t*>(one.non_finite.bytes().data()), one.number};
  }
  static std::span<float> piece(const Buffer& buffer, std::uint64_t first, std::uint64_t count) {
    return buffer.floats().subspan(first, count);
  }

  static void take_decay(const PrepareRange& range, std::uint64_t first, std::span<float> u) {
    if (!range.decay.empty()) std::ranges::copy(piece(range.decay, first, u.size()), u.begin());
  }

  // Pieces are whole blocks.
  void prepare_blocks(const PrepareRange& range, float grad_scale) {
    EBB_CHECK(range.block > 0 && kWidened % range.block == 0);
    in_pieces_of(range.g, range.u.elems, [&](std::uint64_t first, std::span<const float> g) {
      out_of_fp32(range.u.sub(first, g.size()), [&](std::uint64_t at, std::span<float> u) {
        take_decay(range, first + at, u);
        const auto scales = piece(range.scales, (first + at) / range.block,
                                  formats::div_ceil(u.size(), range.block));
        const auto some_g = g.subspan(at, u.size());
        const Int8Blocks m{range.m.int8s().subspan(first + at, u.size()), scales, range.block};
        if (range.recompute)
          update_range(*range.spec, grad_scale, some_g, m, u);
        else
          momentum_range(*range.spec, grad_scale, some_g, m, u);
      });
    });
  }

  // Of -0, to which adding anything gives just that: of +0, a zero could lose its sign.
  static void hand_out_update(const FinishRange& range, std::uint64_t first,
                              std::span<const float> o) {
    if (range.out.empty()) return;
    out_of_fp32(range.out.sub(first, o.size()), [&](std::uint64_t at, std::span<float> update) {
      std::ranges::fill(update, -0.0f);
      apply_range(*range.spec, range.scale, o.subspan(at, update.size()), update);
    });
  }

  // Elements `of` of a range's weights through job(first, w), where they lie or joined from halves,
  // and handed out.
  template <typename Range, typename Job>
  static void change_weights(const Range& range, FlatRange of, const Job& job) {
    if (range.w.dtype == DType::f32) {
      const auto w = piece(range.w, of.first, of.count);
      job(of.first, w);
      return copy_out(w, range.out, of.first);
    }
    std::array<float, kWidened> wide;
    for (std::uint64_t done = 0; done < of.count; done += wide.size()) {
      const std::uint64_t first = of.first + done;
      const auto w = std::span(wide).first(std::min<std::uint64_t>(wide.size(), of.count - done));
      const auto low = range.w.u16s().subspan(first, w.size());
      join(range.high.bf16s().subspan(first, w.size()), low, w);
      job(first, w);
      split(w, range.out.bf16s().subspan(first, w.size()), low);
    }
  }

  template <typename Given>
  static void take_all(Given given, std::span<float> w) {
    for (std::size_t i = 0; i < w.size(); ++i) w[i] = taken(w[i], given[i]);
  }

  void copy_all(const Buffer& from, const Buffer& to) {
    what_.pool.run(formats::div_ceil(from.elems, kPoolElems), [&](std::size_t i) {
      const std::uint64_t first = i * kPoolElems, count = std::min(kPoolElems, from.elems - first);
      std::ranges::copy(from.sub(first, count).bytes(), to.sub(first, count).bytes().begin());
    });
  }

  void move_lows(const OutRange& range) {
    what_.pool.run(formats::div_ceil(range.w.elems, kPoolElems), [&](std::size_t i) {
      const std::uint64_t first = i * kPoolElems;
      const std::uint64_t count = std::min(kPoolElems, range.w.elems - first);
      const Buffer w = range.w.sub(first, count), out = range.out.sub(first, count);
      if (out.dtype == DType::u16)
        std::ranges::transform(w.floats(), out.u16s().begin(), formats::low_half);
      else
        std::ranges::transform(w.u16s(), out.floats().begin(), [](std::uint16_t low) {
          return std::bit_cast<float>(std::uint32_t{low});
        });
    });
  }

  static void copy_out(std::span<const float> w, const Buffer& out, std::uint64_t first) {
    if (!out.empty()) narrow_to(w, out.sub(first, w.size()));
  }

  // A stage whose jobs have such pieces of so many elements.
  template <typename Job>
  static libswap::Stage in_parallel(std::uint64_t elems, Job job) {
    return {formats::div_ceil(elems, kPoolElems), [elems, job = std::move(job)](std::size_t i) {
              const std::uint64_t first = i * kPoolElems;
              job(formats::FlatRange{first, std::min(kPoolElems, elems - first)});
            }};
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
