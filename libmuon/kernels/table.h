// Kernels: what a step asks of the device that computes it, one object per device and engine. The
// host's is here; a plugin brings another.
//
// Calls take effect as on one queue: each behind those made before it and behind the events it is
// given. Only orthogonalize() may run beside later calls that use other buffers. The event that a
// call answers passes behind it; specs are borrowed until then, lists are not. All buffers lie on
// the kernels' device, and bits depend on values and shapes alone (kernels.h).
//
// Threading: one thread calls, and may work for the pool meanwhile.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "ebb/libmuon/kernels/bf16.h"
#include "ebb/libmuon/spec/blocks.h"
#include "ebb/libswap/device/device.h"
#include "ebb/libswap/pool.h"
#include "ebb/libswap/trace.h"

namespace ebb::libmuon {

// Elementwise work on one tile is a list of ranges; all buffers of one are equally long, fp32
// where nothing else is said. A trainer's gradients `g` and weights `out` are fp32 or bf16: widened
// before all else, rounded to nearest even behind all else. Weights `w` are fp32, or u16: low
// halves of numbers whose high ones are `high`, in bf16 (halves.h); then both are split anew behind
// all else, and `out` gets the high ones. It may be the memory of `high`.

// u <- what decay = l2 adds to the gradient of w (decay_range).
struct DecayRange {
  const MuonSpec* spec = nullptr;
  libswap::Buffer w, u;
};
// m <- momentum of m and g, and of what decay() left in u; u <- what Newton-Schulz takes
// (momentum_range). m: fp32, bf16 or i8; u: fp32 or update_dtype(*spec). An empty g is zeros, here
// and below.
struct PrepareRange {
  const MuonSpec* spec = nullptr;
  libswap::Buffer g, m, u;
  // Of an i8 m: the range begins with a block, and has a scale, fp32, for each of `block` elements.
  libswap::Buffer scales = {};
  std::uint64_t block = 1;
  // Where decay() left what it left, fp32; empty: in u.
  libswap::Buffer decay = {};
  // u <- what this step has made of them before, and m stays as it is (update_range). The host's
  // kernels alone, and not where decay is l2.
  bool recompute = false;
};
// w <- w decayed and moved along o (apply_range); then out <- w, unless that is empty. o: fp32, or
// result_dtype(*spec). An empty w: out <- what w = -0 would become, which is what is added to any
// other (Out::update).
struct FinishRange {
  const MuonSpec* spec = nullptr;
  double scale = 1;
  libswap::Buffer o, w, out;
  libswap::Buffer high = {};
};
// out <- w, as what `out` is: rounded as a step hands weights out. w: fp32 or bf16. Low halves,
// u16, are bits that travel in the room of fp32: out <- those bits, above them 0; or out <- the low
// half of w, whatever w is.
struct OutRange {
  libswap::Buffer w, out;
};
// w <- `given` where that is not w as it is handed out; elsewhere w stays. Low halves become 0:
// what is given is their high ones, which lie elsewhere, and `given` is empty.
struct TakeRange {
  libswap::Buffer given, w;
};
struct AdamRange {
  const AdamSpec* spec = nullptr;
  std::uint64_t step = 0;  // 1-based
  libswap::Buffer g, w, exp_avg, exp_avg_sq, out;
  libswap::Buffer high = {};
};
// `count` matrices of one shape, one behind the other in `u`, or one whose rows lie apart: each
// becomes its O in place. What travels may be narrower (update_dtype, result_dtype): unless they
// are empty, u is first widened from `in`, and all of it rounded to `out` at last, maybe the same
// place.
struct MatrixBatch {
  const MuonSpec* spec = nullptr;
  Block matrix;
  std::uint64_t count = 1;
  Bf16 bf16 = Bf16::emulated;  // how the host multiplies it
  libswap::Buffer u;
  // One u32: `number` + i is written there, by whichever kernel makes it so, where the i-th of them
  // is not finite; else it stays as it is.
  libswap::Buffer non_finite = {};
  std::uint32_t number = 1;
  libswap::Buffer in = {}, out = {};

  // One of them, as a batch of its own.
  MatrixBatch at(std::uint64_t i) const {
    const auto its = [&](const libswap::Buffer& all) {
      return all.empty() ? all : all.sub(i * matrix.span(), matrix.span());
    };
    return {spec,    matrix,  1, bf16, its(u), non_finite, number + static_cast<std::uint32_t>(i),
            its(in), its(out)};
  }
};
// A batch that has become O, and its second moments `v`, which are updated; O <- O normalised by
// them (normalise), and rounded to o.out, unless that is empty. Those of a matrix are of its rows,
// from the first to the last, or of its columns (moments_of_rows).
struct NormaliseRange {
  MatrixBatch o;
  libswap::Buffer v;
};
// A gradient, or a part of one, before a step.
struct LookRange {
  libswap::Buffer g;
  double limit = 1;     // of a magnitude
  bool in_norm = true;  // false: a copy of it is, on another rank
};
// sum <- sum + g; where it is the first, sum <- g.
struct AddRange {
  libswap::Buffer g, sum;
  bool first = false;
};
// What is found of all ranges together, as it lies in a device's memory.
struct Look {
  std::array<std::int64_t, 20> squares{};  // of the norm: limbs of an ExactSum, carried or not
  double largest = 0;                      // of |g| / limit; infinity where a g is not finite
};

class Kernels {
 public:
  using Event = libswap::Event;
  using After = std::span<const Event>;

  virtual ~Kernels() = default;
  virtual libswap::Device* device() const = 0;  // null: the host

  // `found`: room for a Look, which is written whole.
  virtual Event look(std::span<const LookRange> ranges, libswap::Buffer found, After after) = 0;
  virtual Event add(std::span<const AddRange> ranges, After after) = 0;
  // Before prepare() of the same elements, where their spec's decay is l2.
  virtual Event decay(std::span<const DecayRange> ranges, After after) = 0;
  // Gradients count `grad_scale` times.
  virtual Event prepare(std::span<const PrepareRange> ranges, float grad_scale, After after) = 0;
  virtual Event orthogonalize(const MatrixBatch& batch, libswap::Buffer workspace, After after) = 0;
  virtual Event normalise(std::span<const NormaliseRange> ranges, After after) = 0;
  virtual Event finish(std::span<const FinishRange> ranges, After after) = 0;
  virtual Event hand_out(std::span<const OutRange> ranges, After after) = 0;
  virtual Event take(std::span<const TakeRange> ranges, After after) = 0;
  virtual Event adamw(std::span<const AdamRange> ranges, float grad_scale, After after) = 0;

  // Before the first orthogonalize(): what ranks have agreed on (Accelerator::measure).
  virtual void choose(std::uint32_t /*choice*/) {}
};

// What kernels compute with and tell of; all borrowed.
struct KernelsFor {
  libswap::Pool& pool;
  libswap::Trace* trace = nullptr;
  Rank rank{};
};

// A device that computes steps, as an engine is told of it.
class Accelerator {
 public:
  virtual ~Accelerator() = default;
  virtual libswap::Device& device() = 0;
  // Of prepare(): fp32 and bf16 are taken by all.
  virtual bool takes_momentum_in(DType dtype) const {
    return dtype == DType::f32 || dtype == DType::bf16;
  }
  // Where it could make a product in two ways, with other bits, and only a measurement can say
  // which is faster: a number of its own, the larger the more of its own ways. Ranks take the
  // least. 0: as a device that was never measured.
  struct Choice {
    std::uint32_t choice = 0;
    std::string note;  // of what was found; may be empty
  };
  virtual Result<Choice> measure() { return Choice{}; }
  // What its bits depend on beside values and shapes: recorded in the manifest. And the choice that
  // such a text names, as far as this device can make it.
  virtual std::string fingerprint(std::uint32_t choice) const = 0;
  virtual std::optional<std::uint32_t> choice_in(std::string_view /*fingerprint*/) const {
    return 0;
  }
  // Code::unsupported names what of the spec its kernels do not do.
  virtual Result<> does(const MuonSpec& /*spec*/) const { return {}; }
  // Whether its kernels take U and O as they travel, where that is narrower than fp32.
  virtual bool takes_what_travels() const { return false; }
  // Bytes that one orthogonalize() of such a batch needs; one is under way at a time.
  virtual std::uint64_t workspace_bytes(const MuonSpec& spec, const Block& matrix,
                                        std::uint64_t count) const = 0;
  virtual Result<std::unique_ptr<Kernels>> kernels(const KernelsFor& what) = 0;
};

// Of the host, where there is no accelerator.
std::unique_ptr<Kernels> make_host_kernels(const KernelsFor& what);

}  // namespace ebb::libmuon
