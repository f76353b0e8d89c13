// Which symmetric products are faster here: ours (symmetric.cu), or the library's and a mirror.
#include "plugins/cuda/measure.h"

#include <array>
#include <functional>
#include <vector>

#include "ebb/formats/core/bf16.h"

namespace ebb::cuda {
namespace {

using libmuon::Precision;

constexpr std::array<std::uint64_t, 4> kRows = {4096, 2048, 1024, 512};
constexpr std::uint64_t kElems = kRows[0] * kRows[0];
constexpr int kRounds = 3, kCalls = 4;
constexpr double kGain = 1.03;  // less is noise
constexpr double kNear = 0.01;  // of results, relative: both round to bf16 once

// Memory, a stream and two events, for as long as it takes.
class Bench {
 public:
  Bench() = default;
  Bench(const Bench&) = delete;
  Bench& operator=(const Bench&) = delete;
  ~Bench() {
    for (void* const memory : memory_)
      if (memory != nullptr) cudaFree(memory);
    for (const cudaEvent_t event : events_)
      if (event != nullptr) cudaEventDestroy(event);
    if (stream_ != nullptr) cudaStreamDestroy(stream_);
  }

  Answer open(Why* why) {
    cudaError_t error = cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
    for (cudaEvent_t& event : events_)
      if (error == cudaSuccess) error = cudaEventCreateWithFlags(&event, cudaEventDefault);
    for (std::size_t i = 0; i < memory_.size(); ++i)
      if (error == cudaSuccess)
        error = cudaMalloc(&memory_[i], i == kWorkspace ? kProductWorkspace : 2 * kElems);
    if (error != cudaSuccess) return answer_of(error, "measuring products", why);
    std::vector<std::uint16_t> numbers(kElems);
    std::uint32_t state = 1;
    for (std::uint16_t& number : numbers) {
      state = state * 1664525u + 1013904223u;
      number =
          formats::f32_to_bf16(static_cast<float>(static_cast<std::int32_t>(state)) * 0x1p-31f);
    }
    error = cudaMemcpyAsync(memory_[kX], numbers.data(), 2 * kElems, cudaMemcpyDefault, stream_);
    if (error == cudaSuccess) error = cudaStreamSynchronize(stream_);
    return answer_of(error, "measuring products", why);
  }

  enum Memory : std::uint8_t { kX, kOwn, kLibrary, kWorkspace };
  void* at(Memory memory) const { return memory_[memory]; }
  cudaStream_t stream() const { return stream_; }

  // The least of several rounds; the first, in which things are loaded, does not count.
  Answer time(float& least, Why* why, const std::function<Answer()>& call) {
    least = 0;
    for (int round = 0; round <= kRounds; ++round) {
      cudaError_t error = cudaEventRecord(events_[0], stream_);
      for (int i = 0; i < kCalls && error == cudaSuccess; ++i)
        if (const Answer answer = call(); answer != Answer::done) return answer;
      if (error == cudaSuccess) error = cudaEventRecord(events_[1], stream_);
      if (error == cudaSuccess) error = cudaEventSynchronize(events_[1]);
      float took = 0;
      if (error == cudaSuccess) error = cudaEventElapsedTime(&took, events_[0], events_[1]);
      if (error != cudaSuccess) return answer_of(error, "measuring products", why);
      if (round == 1 || (round > 1 && took < least)) least = took;
    }
    return Answer::done;
  }

  Answer bring(Memory memory, std::vector<std::uint16_t>& numbers, Why* why) const {
    cudaError_t error = cudaMemcpyAsync(numbers.data(), memory_[memory], 2 * numbers.size(),
                                        cudaMemcpyDefault, stream_);
    if (error == cudaSuccess) error = cudaStreamSynchronize(stream_);
    return answer_of(error, "measuring products", why);
  }

 private:
  std::array<void*, 4> memory_{};
  std::array<cudaEvent_t, 2> events_{};
  cudaStream_t stream_ = nullptr;
};

// As near as roundings are, and symmetric to the bit.
bool right(const std::vector<std::uint16_t>& own, const std::vector<std::uint16_t>& library,
           std::uint64_t rows) {
  double apart = 0, all = 0;
  for (std::uint64_t row = 0; row < rows; ++row)
    for (std::uint64_t col = 0; col < rows; ++col) {
      if (own[row * rows + col] != own[col * rows + row]) return false;
      const auto a = static_cast<double>(formats::bf16_to_f32(own[row * rows + col]));
      const auto b = static_cast<double>(formats::bf16_to_f32(library[row * rows + col]));
      apart += (a - b) * (a - b);
      all += b * b;
    }
  return apart <= kNear * kNear * all;  // not so where one is NaN
}

struct Found {
  double gain = 0;  // of ours
  bool right = false;
};

Answer compare(Products& products, unsigned processors, std::uint64_t rows, Bench& bench,
               Found& found, Why* why) {
  // So many that all processors have work.
  const std::uint64_t count = rows < 2048 ? 2048 * 2048 / (rows * rows) : 1;
  const auto batch = [&](Bench::Memory memory) {
    return Batch{bench.at(memory), rows, rows, rows, rows * rows, count, Precision::bf16};
  };
  const Batch x = batch(Bench::kX), own = batch(Bench::kOwn), library = batch(Bench::kLibrary);
  float ours = 0, theirs = 0;
  Answer answer = bench.time(ours, why, [&] {
    return answer_of(launch_symmetric({x, own, own}, processors, bench.stream()),
                     "a symmetric product", why);
  });
  if (answer != Answer::done) return answer;
  answer = bench.time(theirs, why, [&] {
    const Answer made = products.multiply({x, x, library, library, Product::Right::transposed},
                                          bench.at(Bench::kWorkspace), bench.stream(), why);
    if (made != Answer::done) return made;
    return answer_of(launch_mirror(library, bench.stream()), "mirroring", why);
  });
  if (answer != Answer::done) return answer;
  found.gain = static_cast<double>(theirs) / static_cast<double>(ours);
  std::vector<std::uint16_t> a(rows * rows), b(rows * rows);
  answer = bench.bring(Bench::kOwn, a, why);
  if (answer == Answer::done) answer = bench.bring(Bench::kLibrary, b, why);
  if (answer == Answer::done) found.right = right(a, b, rows);
  return answer;
}

}  // namespace

Answer measure_symmetric(Products& products, unsigned processors, std::uint64_t* symmetric_from,
                         Why* why) {
  *symmetric_from = 0;
  Bench bench;
  const Answer opened = bench.open(why);
  // Where there is no memory to measure in, there is none for a difference to matter.
  if (opened == Answer::no_memory) {
    because(why, Answer::done, "no memory of the device was left to measure products in");
    return Answer::done;
  }
  if (opened != Answer::done) return opened;
  for (const std::uint64_t rows : kRows) {
    Found found;
    const Answer answer = compare(products, processors, rows, bench, found, why);
    if (answer != Answer::done) return answer;
    if (!found.right) {
      *symmetric_from = 0;
      return because(why, Answer::done,
                     "the device's own symmetric products are wrong at " + std::to_string(rows) +
                         " rows, and are not used: please report it");
    }
    if (found.gain < kGain) break;
    *symmetric_from = rows;
  }
  return Answer::done;
}

}  // namespace ebb::cuda
