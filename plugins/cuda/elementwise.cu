// Elementwise kernels: one pass over memory each.
#include "plugins/cuda/elements.cuh"
#include "plugins/cuda/precision.cuh"

namespace ebb::cuda {
namespace {

using libmuon::Momentum;
using libmuon::Precision;

template <typename G>
__global__ void __launch_bounds__(kThreads)
    add_kernel(std::uint64_t elems, const G* __restrict__ g, float* __restrict__ sum, bool first) {
  struct Loaded {
    G gradient;
    float sum;
  };
  for_each(
      elems, [&](std::uint64_t i) { return Loaded{g[i], first ? 0.0f : sum[i]}; },
      [&](std::uint64_t i, const Loaded& loaded) {
        const float gradient = libmuon::widened(loaded.gradient);
        sum[i] = first ? gradient : loaded.sum + gradient;
      });
}

__global__ void __launch_bounds__(kThreads)
    decay_kernel(float factor, std::uint64_t elems, const float* __restrict__ w,
                 float* __restrict__ u) {
  for_each(
      elems, [&](std::uint64_t i) { return w[i]; },
      [&](std::uint64_t i, float weight) { u[i] = factor * weight; });
}

// What decays may lie where U goes.
template <Momentum kForm, bool kNesterov, typename G, typename M>
__global__ void __launch_bounds__(kThreads)
    prepare_kernel(libmuon::MomentumFactors f, std::uint64_t elems, const G* __restrict__ g,
                   M* __restrict__ m, const float* decay, Out u) {
  struct Loaded {
    M momentum;
    float gradient, decay;
  };
  for_each(
      elems,
      [&](std::uint64_t i) {
        return Loaded{m[i], gradient_at(g, i), decay != nullptr ? decay[i] : 0.0f};
      },
      [&](std::uint64_t i, const Loaded& loaded) {
        const auto& [before, gradient, decayed] = loaded;
        M momentum = before;
        u.put(i, decay != nullptr
                     ? libmuon::take_decayed<kForm, kNesterov>(f, gradient, decayed, momentum)
                     : libmuon::take_momentum<kForm, kNesterov>(f, gradient, momentum));
        m[i] = momentum;
      });
}

template <Precision kStep, Precision kWeights, Precision kO>
__global__ void __launch_bounds__(kThreads)
    finish_kernel(libmuon::ApplyFactors f, std::uint64_t elems, const Numbers<kO>* __restrict__ o,
                  Weights w, Out out) {
  struct Loaded {
    Numbers<kO> o;
    float weight;
  };
  for_each(
      elems, [&](std::uint64_t i) { return Loaded{o[i], w.at(i)}; },
      [&](std::uint64_t i, const Loaded& loaded) {
        const float o_here = Stored<kO>::widen(loaded.o);
        w.put(i, libmuon::applied<kStep, kWeights>(f, o_here, loaded.weight), out);
      });
}

template <typename W>
__global__ void __launch_bounds__(kThreads)
    hand_out_kernel(std::uint64_t elems, const W* __restrict__ w, Out out) {
  for_each(
      elems, [&](std::uint64_t i) { return w[i]; },
      [&](std::uint64_t i, W weight) { out.put(i, libmuon::widened(weight)); });
}

// Low halves travel as bits of fp32.
__global__ void __launch_bounds__(kThreads)
    lows_out_kernel(std::uint64_t elems, const std::uint16_t* __restrict__ low,
                    std::uint32_t* __restrict__ out) {
  for_each(
      elems, [&](std::uint64_t i) { return low[i]; },
      [&](std::uint64_t i, std::uint16_t half) { out[i] = half; });
}

__global__ void __launch_bounds__(kThreads)
    lows_in_kernel(std::uint64_t elems, const float* __restrict__ from,
                   std::uint16_t* __restrict__ low) {
  for_each(
      elems, [&](std::uint64_t i) { return from[i]; },
      [&](std::uint64_t i, float master) { low[i] = formats::low_half(master); });
}

template <typename Given>
__global__ void __launch_bounds__(kThreads)
    take_kernel(std::uint64_t elems, const Given* __restrict__ given, float* __restrict__ w) {
  struct Loaded {
    float weight;
    Given given;
  };
  for_each(
      elems, [&](std::uint64_t i) { return Loaded{w[i], given[i]}; },
      [&](std::uint64_t i, const Loaded& loaded) {
        w[i] = libmuon::taken(loaded.weight, loaded.given);
      });
}

template <typename G>
__global__ void __launch_bounds__(kThreads)
    adamw_kernel(libmuon::AdamFactors f, std::uint64_t elems, const G* __restrict__ g, Weights w,
                 float* __restrict__ exp_avg, float* __restrict__ exp_avg_sq, Out out) {
  struct Loaded {
    float gradient, weight, exp_avg, exp_avg_sq;
  };
  for_each(
      elems,
      [&](std::uint64_t i) {
        return Loaded{gradient_at(g, i), w.at(i), exp_avg[i], exp_avg_sq[i]};
      },
      [&](std::uint64_t i, const Loaded& loaded) {
        const float gradient = f.scale * loaded.gradient;
        const float first = libmuon::adam_first(f, gradient, loaded.exp_avg);
        const float second = libmuon::adam_second(f, gradient, loaded.exp_avg_sq);
        exp_avg[i] = first;
        exp_avg_sq[i] = second;
        w.put(i, libmuon::adam_weight(f, loaded.weight, first, sqrtf(second)), out);
      });
}

template <Precision kFrom, Precision kTo>
__global__ void __launch_bounds__(kThreads)
    convert_kernel(std::uint64_t elems, const Numbers<kFrom>* from, Numbers<kTo>* to) {
  for_each(
      elems, [&](std::uint64_t i) { return from[i]; },
      [&](std::uint64_t i, Numbers<kFrom> number) {
        to[i] = Stored<kTo>::narrow(libmuon::rounded<kTo>(Stored<kFrom>::widen(number)));
      });
}

float* floats(const libmuon::PlainBuffer& buffer) { return static_cast<float*>(buffer.data); }

// Calls launch(pointer, the precision as a constant) of numbers as they are stored.
template <typename Launch>
cudaError_t as_numbers(const libmuon::PlainBuffer& buffer, const Launch& launch) {
  const Precision stored = buffer.dtype == DType::bf16  ? Precision::bf16
                           : buffer.dtype == DType::f16 ? Precision::fp16
                                                        : Precision::fp32;
  return with_precision(stored, [&](auto precision) {
    return launch(static_cast<Numbers<precision()>*>(buffer.data), precision);
  });
}

template <Momentum kForm, bool kNesterov>
cudaError_t prepare(const libmuon::PlainPrepare& range, cudaStream_t stream) {
  const std::uint64_t elems = range.m.elems;
  return as_stored(range.g, [&]<typename G>(G* g) {
    return as_stored(range.m, [&]<typename M>(M* m) {
      return start(prepare_kernel<kForm, kNesterov, G, M>, blocks_for(elems), kThreads, 0, stream,
                   range.factors, elems, g, m, floats(range.decay), Out(range.u));
    });
  });
}

template <Precision kWeights>
cudaError_t finish(const libmuon::PlainFinish& range, cudaStream_t stream) {
  const std::uint64_t elems = range.o.elems;
  return as_numbers(range.o, [&](auto* o, auto precision) {
    return with_precision(range.step, [&](auto step) {
      return start(finish_kernel<step(), kWeights, precision()>, blocks_for(elems), kThreads, 0,
                   stream, range.factors, elems, o, Weights(range.w, range.high), Out(range.out));
    });
  });
}

}  // namespace

cudaError_t launch_add(const libmuon::PlainAdd& range, cudaStream_t stream) {
  const std::uint64_t elems = range.g.elems;
  return as_stored(range.g, [&]<typename G>(G* g) {
    return start(add_kernel<G>, blocks_for(elems), kThreads, 0, stream, elems, g, floats(range.sum),
                 range.first != 0);
  });
}

cudaError_t launch_decay(const libmuon::PlainDecay& range, cudaStream_t stream) {
  const std::uint64_t elems = range.w.elems;
  return start(decay_kernel, blocks_for(elems), kThreads, 0, stream, range.factor, elems,
               floats(range.w), floats(range.u));
}

cudaError_t launch_prepare(const libmuon::PlainPrepare& range, cudaStream_t stream) {
  return in_form(
      range, [&](auto form, auto nesterov) { return prepare<form(), nesterov()>(range, stream); });
}

cudaError_t launch_finish(const libmuon::PlainFinish& range, cudaStream_t stream) {
  return range.weights == Precision::bf16 ? finish<Precision::bf16>(range, stream)
                                          : finish<Precision::fp32>(range, stream);
}

cudaError_t launch_hand_out(const libmuon::PlainOut& range, cudaStream_t stream) {
  const std::uint64_t elems = range.w.elems;
  if (range.w.dtype == DType::u16 && range.out.dtype == DType::f32)
    return start(lows_out_kernel, blocks_for(elems), kThreads, 0, stream, elems,
                 static_cast<const std::uint16_t*>(range.w.data),
                 static_cast<std::uint32_t*>(range.out.data));
  if (range.out.dtype == DType::u16)
    return start(lows_in_kernel, blocks_for(elems), kThreads, 0, stream, elems, floats(range.w),
                 static_cast<std::uint16_t*>(range.out.data));
  return as_stored(range.w, [&]<typename W>(W* w) {
    return start(hand_out_kernel<W>, blocks_for(elems), kThreads, 0, stream, elems, w,
                 Out(range.out));
  });
}

cudaError_t launch_take(const libmuon::PlainTake& range, cudaStream_t stream) {
  const std::uint64_t elems = range.w.elems;
  if (range.w.dtype == DType::u16)
    return cudaMemsetAsync(range.w.data, 0, elems * sizeof(std::uint16_t), stream);
  return as_stored(range.given, [&]<typename Given>(Given* given) {
    return start(take_kernel<Given>, blocks_for(elems), kThreads, 0, stream, elems, given,
                 floats(range.w));
  });
}

cudaError_t launch_adamw(const libmuon::PlainAdam& range, cudaStream_t stream) {
  const std::uint64_t elems = range.w.elems;
  return as_stored(range.g, [&]<typename G>(G* g) {
    return start(adamw_kernel<G>, blocks_for(elems), kThreads, 0, stream, range.factors, elems, g,
                 Weights(range.w, range.high), floats(range.exp_avg), floats(range.exp_avg_sq),
                 Out(range.out));
  });
}

cudaError_t launch_convert(const libmuon::PlainBuffer& from, const libmuon::PlainBuffer& to,
                           cudaStream_t stream) {
  return as_numbers(from, [&](auto* source, auto of) {
    return as_numbers(to, [&](auto* target, auto as) {
      return start(convert_kernel<of(), as()>, blocks_for(to.elems), kThreads, 0, stream, to.elems,
                   source, target);
    });
  });
}

}  // namespace ebb::cuda
