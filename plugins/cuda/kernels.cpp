// The table of kernels: a launch for each range, Newton-Schulz for a batch.
#include <algorithm>
#include <memory>

#include "plugins/cuda/launch.h"
#include "plugins/cuda/newton_schulz.h"

namespace ebb::cuda {
namespace {

struct CudaKernels {
  explicit CudaKernels(CudaDevice& on) : device(on) {}
  CudaDevice& device;
  Products products;
};

CudaKernels& kernels_of(void* kernels) { return *static_cast<CudaKernels*>(kernels); }

Answer open(void* device, void** opened, Why* why) {
  const Current current(device_of(device));
  auto kernels = std::make_unique<CudaKernels>(device_of(device));
  const Answer answer = Products::open(kernels->products, why);
  if (answer == Answer::done) *opened = kernels.release();
  return answer;
}

void close(void* closed) {
  const Current current(kernels_of(closed).device);
  delete &kernels_of(closed);
}

void fingerprint(void* device, char* text, std::uint64_t size) {
  const std::size_t version = cublasLtGetVersion();
  const std::string name = device_of(device).name;
  const std::string all = "cuBLASLt " + std::to_string(version) + " " +
                          name.substr(0, name.rfind(' ')) + " products=whole elementwise=ebb";
  std::copy_n(all.begin(), std::min<std::uint64_t>(size, all.size()), text);
}

std::uint64_t workspace_bytes(const libmuon::PlainMatrices* matrices) {
  return newton_schulz_bytes(*matrices);
}

// launch(range) for each range that is not empty.
template <typename Range, typename Launch>
Answer for_ranges(void* kernels, const Range* ranges, std::uint64_t count,
                  libmuon::PlainBuffer Range::* measure, const char* doing, Why* why,
                  const Launch& launch) {
  const Current current(kernels_of(kernels).device);
  for (std::uint64_t i = 0; i < count; ++i) {
    if ((ranges[i].*measure).elems == 0) continue;
    const Answer answer = answer_of(launch(ranges[i]), doing, why);
    if (answer != Answer::done) return answer;
  }
  return Answer::done;
}

Answer look(void* kernels, void* stream, const libmuon::PlainLook* ranges, std::uint64_t count,
            void* found, Why* why) {
  {
    const Current current(kernels_of(kernels).device);
    const cudaError_t error = cudaMemsetAsync(found, 0, sizeof(libmuon::Look), stream_of(stream));
    if (error != cudaSuccess) return answer_of(error, "cudaMemsetAsync", why);
  }
  return for_ranges(kernels, ranges, count, &libmuon::PlainLook::g, "the norm", why,
                    [&](const libmuon::PlainLook& range) {
                      return launch_look(range, static_cast<libmuon::Look*>(found),
                                         stream_of(stream));
                    });
}

Answer add(void* kernels, void* stream, const libmuon::PlainAdd* ranges, std::uint64_t count,
           Why* why) {
  return for_ranges(
      kernels, ranges, count, &libmuon::PlainAdd::g, "adding gradients", why,
      [&](const libmuon::PlainAdd& range) { return launch_add(range, stream_of(stream)); });
}

Answer decay(void* kernels, void* stream, const libmuon::PlainDecay* ranges, std::uint64_t count,
             Why* why) {
  return for_ranges(
      kernels, ranges, count, &libmuon::PlainDecay::w, "decay", why,
      [&](const libmuon::PlainDecay& range) { return launch_decay(range, stream_of(stream)); });
}

Answer prepare(void* kernels, void* stream, const libmuon::PlainPrepare* ranges,
               std::uint64_t count, Why* why) {
  return for_ranges(
      kernels, ranges, count, &libmuon::PlainPrepare::m, "momentum", why,
      [&](const libmuon::PlainPrepare& range) { return launch_prepare(range, stream_of(stream)); });
}

Answer finish(void* kernels, void* stream, const libmuon::PlainFinish* ranges, std::uint64_t count,
              Why* why) {
  return for_ranges(
      kernels, ranges, count, &libmuon::PlainFinish::o, "the update", why,
      [&](const libmuon::PlainFinish& range) { return launch_finish(range, stream_of(stream)); });
}

Answer hand_out(void* kernels, void* stream, const libmuon::PlainOut* ranges, std::uint64_t count,
                Why* why) {
  return for_ranges(
      kernels, ranges, count, &libmuon::PlainOut::out, "handing weights out", why,
      [&](const libmuon::PlainOut& range) { return launch_hand_out(range, stream_of(stream)); });
}

Answer adamw(void* kernels, void* stream, const libmuon::PlainAdam* ranges, std::uint64_t count,
             Why* why) {
  return for_ranges(
      kernels, ranges, count, &libmuon::PlainAdam::w, "AdamW", why,
      [&](const libmuon::PlainAdam& range) { return launch_adamw(range, stream_of(stream)); });
}

Answer orthogonalize(void* kernels, void* stream, const libmuon::PlainMatrices* matrices,
                     void* workspace, std::uint64_t bytes, Why* why) {
  if (bytes < newton_schulz_bytes(*matrices))
    return because(why, Answer::failed, "the workspace of Newton-Schulz is too small");
  CudaKernels& with = kernels_of(kernels);
  const Current current(with.device);
  const libmuon::PlainBuffer u = {matrices->u, matrices->count * matrices->span(), DType::f32};
  Answer answer = Answer::done;
  if (matrices->in.elems > 0)
    answer = answer_of(launch_convert(matrices->in, u, stream_of(stream)), "widening", why);
  if (answer == Answer::done)
    answer = newton_schulz(with.products, *matrices, static_cast<std::byte*>(workspace),
                           stream_of(stream), why);
  if (answer == Answer::done && matrices->out.elems > 0)
    answer = answer_of(launch_convert(u, matrices->out, stream_of(stream)), "rounding", why);
  return answer;
}

}  // namespace

const libmuon::KernelsTable kKernelsTable = {
    .head = {sizeof(libmuon::KernelsTable), libmuon::kKernelsTableVersion},
    .open = open,
    .close = close,
    .fingerprint = fingerprint,
    .workspace_bytes = workspace_bytes,
    .look = look,
    .add = add,
    .decay = decay,
    .prepare = prepare,
    .finish = finish,
    .hand_out = hand_out,
    .adamw = adamw,
    .orthogonalize = orthogonalize};

}  // namespace ebb::cuda
