// The table of kernels: a launch for each range, Newton-Schulz for a batch.
#include <algorithm>
#include <memory>

#include "plugins/cuda/graphs.h"
#include "plugins/cuda/launch.h"
#include "plugins/cuda/measure.h"
#include "plugins/cuda/newton_schulz.h"

namespace ebb::cuda {
namespace {

// Room that grows, and is kept. What it was before it grew may still be used by a stream.
class Room {
 public:
  Room() = default;
  Room(const Room&) = delete;
  Room& operator=(const Room&) = delete;
  ~Room() {
    for (void* const memory : all_) cudaFree(memory);
  }
  Answer take(std::uint64_t bytes, std::byte*& memory, Why* why) {
    if (bytes > bytes_) {
      void* larger = nullptr;
      const std::uint64_t wanted = std::max(bytes, 2 * bytes_);
      if (const auto error = cudaMalloc(&larger, wanted); error != cudaSuccess)
        return answer_of(error, "cudaMalloc", why);
      all_.push_back(larger);
      bytes_ = wanted;
    }
    memory = static_cast<std::byte*>(all_.back());
    return Answer::done;
  }

 private:
  std::vector<void*> all_;
  std::uint64_t bytes_ = 0;
};

struct CudaKernels {
  explicit CudaKernels(CudaDevice& on) : device(on) {}
  CudaDevice& device;
  Products products;
  Graphs graphs;
  Room moments;  // sums and factors of normalise()
};

CudaKernels& kernels_of(void* kernels) { return *static_cast<CudaKernels*>(kernels); }

libmuon::PlainBuffer all_of(const libmuon::PlainMatrices& matrices) {
  return {matrices.u, matrices.count * matrices.span(), DType::f32};
}

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
                          name.substr(0, name.rfind(' ')) + " elementwise=ebb";
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
  return for_ranges(kernels, ranges, count, &libmuon::PlainPrepare::m, "momentum", why,
                    [&](const libmuon::PlainPrepare& range) {
                      return range.m.dtype == DType::i8
                                 ? launch_prepare_blocks(range, stream_of(stream))
                                 : launch_prepare(range, stream_of(stream));
                    });
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

Answer take(void* kernels, void* stream, const libmuon::PlainTake* ranges, std::uint64_t count,
            Why* why) {
  return for_ranges(
      kernels, ranges, count, &libmuon::PlainTake::w, "taking weights", why,
      [&](const libmuon::PlainTake& range) { return launch_take(range, stream_of(stream)); });
}

Answer adamw(void* kernels, void* stream, const libmuon::PlainAdam* ranges, std::uint64_t count,
             Why* why) {
  return for_ranges(
      kernels, ranges, count, &libmuon::PlainAdam::w, "AdamW", why,
      [&](const libmuon::PlainAdam& range) { return launch_adamw(range, stream_of(stream)); });
}

// As of its matrices.
libmuon::PlainNormalise part_of(const libmuon::PlainNormalise& range, std::uint64_t first) {
  libmuon::PlainNormalise part = range;
  const std::uint64_t each = range.v.elems / range.o.count;
  part.o = cuda::part_of(range.o, first);
  part.v = {static_cast<float*>(range.v.data) + first * each, part.o.count * each, DType::f32};
  return part;
}

Answer normalise_at_once(CudaKernels& with, void* stream, const libmuon::PlainNormalise& range,
                         Why* why) {
  const std::uint64_t sides = sides_of(range);
  std::byte* room = nullptr;
  if (const Answer answer = with.moments.take(sides * (sizeof(double) + sizeof(float)), room, why);
      answer != Answer::done)
    return answer;
  return answer_of(
      launch_normalise(range, reinterpret_cast<double*>(room),
                       reinterpret_cast<float*>(room + sides * sizeof(double)), stream_of(stream)),
      "second moments", why);
}

Answer normalise(void* kernels, void* stream, const libmuon::PlainNormalise* ranges,
                 std::uint64_t count, Why* why) {
  CudaKernels& with = kernels_of(kernels);
  const Current current(with.device);
  Answer answer = Answer::done;
  for (std::uint64_t i = 0; i < count && answer == Answer::done; ++i) {
    const libmuon::PlainNormalise& range = ranges[i];
    for (std::uint64_t first = 0; first < range.o.count && answer == Answer::done;
         first += kMostAtOnce)
      answer = normalise_at_once(with, stream, part_of(range, first), why);
    if (answer == Answer::done && range.o.out.elems > 0)
      answer = answer_of(launch_convert(all_of(range.o), range.o.out, stream_of(stream)),
                         "rounding", why);
  }
  return answer;
}

Answer orthogonalize_plainly(CudaKernels& with, const libmuon::PlainMatrices& matrices,
                             void* workspace, cudaStream_t stream, Why* why) {
  Answer answer = Answer::done;
  if (matrices.in.elems > 0)
    answer = answer_of(launch_convert(matrices.in, all_of(matrices), stream), "widening", why);
  if (answer == Answer::done)
    answer = newton_schulz({with.products, with.device.processors}, matrices,
                           static_cast<std::byte*>(workspace), stream, why);
  if (answer == Answer::done && matrices.out.elems > 0)
    answer = answer_of(launch_convert(all_of(matrices), matrices.out, stream), "rounding", why);
  return answer;
}

Answer orthogonalize(void* kernels, void* stream, const libmuon::PlainMatrices* matrices,
                     void* workspace, std::uint64_t bytes, Why* why) {
  if (bytes < newton_schulz_bytes(*matrices))
    return because(why, Answer::failed, "the workspace of Newton-Schulz is too small");
  CudaKernels& with = kernels_of(kernels);
  const Current current(with.device);
  return with.graphs.run(*matrices, workspace, stream_of(stream), why, [&](cudaStream_t given) {
    return orthogonalize_plainly(with, *matrices, workspace, given, why);
  });
}

Answer measure(void* kernels, std::uint64_t* symmetric_from, Why* why) {
  CudaKernels& with = kernels_of(kernels);
  const Current current(with.device);
  return measure_symmetric(with.products, with.device.processors, symmetric_from, why);
}

std::uint32_t has_symmetric(void* device) { return device_of(device).hopper ? 1 : 0; }

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
    .take = take,
    .adamw = adamw,
    .normalise = normalise,
    .orthogonalize = orthogonalize,
    .measure = measure,
    .has_symmetric = has_symmetric};

}  // namespace ebb::cuda
