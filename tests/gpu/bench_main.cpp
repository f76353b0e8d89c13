// ebb-gpu-bench PLUGIN JSON: what a GPU does in how long, as a table and as JSON. 3: there is none.
#include <array>
#include <cstdio>
#include <fstream>

#include "tests/gpu/measured.h"
#include "tools/cli/json.h"

namespace ebb::gpu {
namespace {

struct Matrices {
  const char* preset;
  std::uint64_t rows, cols, count;
};
// Two sizes of large matrices, many small ones, and the shapes of a layer of a 7B model.
constexpr std::array kMatrices = {
    Matrices{"torch", 4096, 4096, 1},  Matrices{"gram", 4096, 4096, 1},
    Matrices{"torch", 4096, 11008, 1}, Matrices{"gram", 4096, 11008, 1},
    Matrices{"torch", 512, 2048, 64},  Matrices{"gram", 512, 2048, 64},
    Matrices{"torch", 4096, 4096, 4},  Matrices{"torch", 11008, 4096, 3}};

Result<std::vector<Measured>> measure_all(Bench& bench) {
  EBB_TRY_ASSIGN(std::vector<Measured> all, measure_copies(bench));
  EBB_TRY_ASSIGN(const auto elementwise, measure_elementwise(bench, 64u << 20));
  all.insert(all.end(), elementwise.begin(), elementwise.end());
  for (const auto& [preset, rows, cols, count] : kMatrices) {
    EBB_TRY_ASSIGN(Measured measured, measure_newton_schulz(bench, preset, rows, cols, count));
    all.push_back(std::move(measured));
  }
  return all;
}

void print(const std::vector<Measured>& all) {
  std::printf("%-44s %12s %12s %12s\n", "what", "ms", "GB/s", "TFLOP/s");
  for (const Measured& one : all)
    std::printf("%-44s %12.3f %12.0f %12.1f\n", one.what.c_str(), 1e3 * one.seconds,
                one.bytes / one.seconds / 1e9, one.flops / one.seconds / 1e12);
}

std::string json_of(const Bench& bench, const std::vector<Measured>& all) {
  tools::JsonWriter json;
  json.open_object().put("device", bench.device->name());
  json.put("fingerprint", bench.accelerator->fingerprint(0));
  json.key("measured").open_list();
  for (const Measured& one : all)
    json.open_object()
        .put("what", one.what)
        .put("nanoseconds", static_cast<std::uint64_t>(1e9 * one.seconds))
        .put("bytes", static_cast<std::uint64_t>(one.bytes))
        .put("standard_flops", static_cast<std::uint64_t>(one.flops))
        .close_object();
  return json.close_list().close_object().take();
}

int run(const std::string& plugin, const std::string& file) {
  auto bench = Bench::open(plugin);
  if (!bench) {
    std::fprintf(stderr, "gpu-check: %s\n", bench.error().message.c_str());
    return bench.error().code == Code::unsupported ? 3 : 1;
  }
  const auto all = measure_all(*bench);
  if (!all) {
    std::fprintf(stderr, "gpu-check: %s\n", all.error().message.c_str());
    return 1;
  }
  std::printf("%s, %s\n", bench->device->name().c_str(),
              bench->accelerator->fingerprint(0).c_str());
  print(*all);
  std::ofstream(file) << json_of(*bench, *all);
  return 0;
}

}  // namespace
}  // namespace ebb::gpu

int main(int count, char** arguments) {
  if (count == 3) return ebb::gpu::run(arguments[1], arguments[2]);
  std::fprintf(stderr, "usage: ebb-gpu-bench PLUGIN JSON\n");
  return 2;
}
