// ebb-kernels: a process that times one kernel of a step for each line it reads, and answers
// seconds and seconds of CPU. For tests/bench/ns and tests/bench/step, which ask several such
// processes in turns.
//   KIND ROWS COLS CORES
// ebb-kernels [avx2|avx512]: products of no better instruction set than that.
#include <chrono>
#include <ctime>
#include <functional>
#include <iostream>
#include <map>
#include <optional>
#include <sstream>

#include "ebb/libmuon/kernels/kernels.h"
#include "ebb/libmuon/kernels/products.h"
#include "ebb/libmuon/spec/presets.h"
#include "ebb/libswap/sys/aligned_buffer.h"
#include "tests/bench/blas_peers.h"
#include "tests/bench/peak.h"

namespace ebb::bench {
namespace {

using libmuon::Bf16;
using libmuon::Form;
using libmuon::MuonSpec;
using libmuon::Precision;

struct Asked {
  std::string kind;
  std::uint64_t rows = 0, cols = 0;
  std::uint32_t cores = 1;
  std::uint64_t elems() const { return rows * cols; }
};

struct Times {
  double seconds = 0, cpu = 0;
};

template <typename Work>
Times seconds_of(const Work& work) {
  const std::clock_t cpu = std::clock();
  const auto begin = std::chrono::steady_clock::now();
  work();
  return {std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(),
          static_cast<double>(std::clock() - cpu) / CLOCKS_PER_SEC};
}

void fill(std::span<float> numbers) {
  std::uint32_t state = 1;
  for (float& number : numbers) {
    state = state * 1664525u + 1013904223u;
    number = static_cast<float>(state >> 8) * 0x1p-24f - 0.5f;
  }
}

// Memory as the engine has it; stays from one question to the next of the same size.
class Room {
 public:
  Result<std::span<float>> floats(std::uint64_t count) {
    if (buffer_.size() < count * sizeof(float)) {
      EBB_TRY_ASSIGN(buffer_, libswap::AlignedBuffer::allocate(count * sizeof(float)));
    }
    return std::span(reinterpret_cast<float*>(buffer_.bytes().data()), count);
  }

 private:
  libswap::AlignedBuffer buffer_;
};

// "FORM-PRECISION": torch.optim.Muon's five steps, or the same in Gram form.
struct Kind {
  MuonSpec spec;
  Bf16 bf16 = Bf16::emulated;
};
std::optional<Kind> kind_of(const std::string& name) {
  Kind kind{*libmuon::preset("torch")};
  const std::size_t dash = name.find('-');
  const std::string form = name.substr(0, dash), precision = name.substr(dash + 1);
  if (form == "gram")
    kind.spec.form = Form::gram;
  else if (form != "standard")
    return std::nullopt;
  if (precision == "fp32") {
    kind.spec.precision = Precision::fp32;
  } else {
    // As frameworks begin anew: without it, bf16 loses the small singular values.
    if (form == "gram") kind.spec.restarts = {2};
    if (precision == "real" && libmuon::has_real_bf16())
      kind.bf16 = Bf16::real;
    else if (precision != "emulated")
      return std::nullopt;
  }
  return kind;
}

EBB_CLONES void triad(std::uint64_t count, const float* __restrict a, const float* __restrict b,
                      float* __restrict c) {
  for (std::uint64_t i = 0; i < count; ++i) c[i] = a[i] + 3.0f * b[i];
}

// Sums beside one another, as fast as the processor reads and converts; whole ones only.
EBB_CLONES double plain_sum(std::uint64_t count, const float* numbers) {
  constexpr std::uint64_t kBeside = 64;
  double sums[kBeside] = {};
  for (std::uint64_t i = 0; i + kBeside <= count; i += kBeside)
    for (std::uint64_t j = 0; j < kBeside; ++j) {
      const auto value = static_cast<double>(numbers[i + j]);
      sums[j] += value * value;
    }
  double all = 0;
  for (const double sum : sums) all += sum;
  return all;
}

// Of 10^9 operations.
Result<Times> of_peak(libmuon::Operands operands, std::uint32_t cores) {
  const double rate = peak_rate(operands, cores);
  if (rate == 0) return Error{Code::unsupported, "this processor has no such operations"};
  return Times{1e9 / rate, cores * 1e9 / rate};
}

// Numbers that stay where they are from one question to the next.
class Timer {
 public:
  Result<Times> time(const Asked& asked) {
    if (const auto kind = kind_of(asked.kind)) return newton_schulz(*kind, asked);
    if (asked.kind == "onednn-fp32" || asked.kind == "openblas-fp32") return library(asked);
    if (asked.kind == "peak-fp32") return of_peak(libmuon::Operands::fp32, asked.cores);
    if (asked.kind == "peak-real") return of_peak(libmuon::Operands::bf16, asked.cores);
    return elementwise(asked);
  }

 private:
  Result<libswap::Pool*> pool_of(std::uint32_t cores) {
    auto& pool = pools_[cores];
    if (pool == nullptr) {
      EBB_TRY_ASSIGN(pool, libswap::Pool::start(cores));
    }
    return pool.get();
  }

  Result<Times> newton_schulz(const Kind& kind, const Asked& asked) {
    EBB_TRY_ASSIGN(libswap::Pool* const pool, pool_of(asked.cores));
    EBB_TRY_ASSIGN(const auto u, rooms_[0].floats(asked.elems()));
    fill(u);
    EBB_TRY_ASSIGN(const auto scratch, rooms_[1].floats(libmuon::newton_schulz_scratch_bytes(
                                                            kind.spec, asked.rows, asked.cols) /
                                                        sizeof(float)));
    const auto matrix = libmuon::Block::matrix(asked.rows, asked.cols);
    return seconds_of([&] {
      const auto done = pool->begin(
          libmuon::newton_schulz(kind.spec, kind.bf16, matrix, u, std::as_writable_bytes(scratch)));
      pool->help_until(done);
    });
  }

  Result<Times> library(const Asked& asked) {
    const Blas blas = asked.kind == "onednn-fp32" ? Blas::onednn : Blas::openblas;
    EBB_TRY_ASSIGN(const auto x, rooms_[0].floats(asked.elems()));
    fill(x);
    Result<> done;
    const Times times =
        seconds_of([&] { done = five_steps(blas, asked.cores, asked.rows, asked.cols, x); });
    EBB_TRY(std::move(done));
    return times;
  }

  // Of ROWS x COLS numbers, in pieces, as the engine cuts them for its pool.
  Result<Times> elementwise(const Asked& asked) {
    EBB_TRY_ASSIGN(libswap::Pool* const pool, pool_of(asked.cores));
    for (std::size_t i = 0; i < numbers_.size(); ++i) {
      if (numbers_[i].size() == asked.elems()) continue;
      EBB_TRY_ASSIGN(numbers_[i], rooms_[2 + i].floats(asked.elems()));
      fill(numbers_[i]);
    }
    const auto work = work_named(asked.kind);
    if (!work) return Error{Code::usage, "nothing is called " + asked.kind};
    constexpr std::uint64_t kPiece = 64u << 10;
    return seconds_of([&] {
      pool->run(formats::div_ceil(asked.elems(), kPiece), [&](std::size_t i) {
        const std::uint64_t first = i * kPiece;
        work(first, std::min(kPiece, asked.elems() - first));
      });
    });
  }

  std::span<float> part(std::size_t of, std::uint64_t first, std::uint64_t count) {
    return numbers_[of].subspan(first, count);
  }

  using Work = std::function<void(std::uint64_t first, std::uint64_t count)>;
  Work work_named(const std::string& name) {
    static const MuonSpec muon = MuonSpec::keller();
    if (name == "triad")
      return [this](auto first, auto count) {
        triad(count, &numbers_[0][first], &numbers_[1][first], &numbers_[2][first]);
      };
    if (name == "adamw")
      return [this](auto first, auto count) {
        libmuon::adamw_range({}, 3, 1, part(0, first, count), part(1, first, count),
                             part(2, first, count), part(3, first, count));
      };
    if (name == "momentum")
      return [this](auto first, auto count) {
        libmuon::momentum_range(muon, 1, part(0, first, count), part(1, first, count),
                                part(2, first, count));
      };
    if (name == "apply")
      return [this](auto first, auto count) {
        libmuon::apply_range(muon, 1, part(0, first, count), part(1, first, count));
      };
    if (name == "norm")
      return [this](auto first, auto count) { libmuon::ExactSum().add(part(0, first, count)); };
    if (name == "plain-sum")
      return [this](auto first, auto count) {
        numbers_[3][first] = static_cast<float>(plain_sum(count, &numbers_[0][first]));
      };
    return nullptr;
  }

  std::map<std::uint32_t, std::unique_ptr<libswap::Pool>> pools_;
  std::array<Room, 6> rooms_;  // of Newton-Schulz: U, scratch; of elementwise work
  std::array<std::span<float>, 4> numbers_;
};

}  // namespace

int program_main(std::string_view isa) {
  if (isa == "avx2") libmuon::use_at_most(libmuon::Isa::avx2);
  if (isa == "avx512") libmuon::use_at_most(libmuon::Isa::avx512);
  Timer timer;
  for (std::string line; std::getline(std::cin, line) && !line.empty();) {
    std::istringstream words(line);
    Asked asked;
    words >> asked.kind >> asked.rows >> asked.cols >> asked.cores;
    const Result<Times> times = words ? timer.time(asked) : Error{Code::usage, line};
    if (times)
      std::cout << times->seconds << ' ' << times->cpu << std::endl;
    else
      std::cout << "error " << times.error().message << std::endl;
  }
  return 0;
}

}  // namespace ebb::bench

int main(int argc, char** argv) { return ebb::bench::program_main(argc > 1 ? argv[1] : ""); }
