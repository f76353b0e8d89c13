// ebb-gpu-bench: what a GPU does in how long, held to goals; for tests/gpu/run.
//   ebb-gpu-bench PLUGIN
//       says which GPU there is; exit code 3: there is none
//   ebb-gpu-bench PLUGIN --json FILE --swap DIRECTORY [--torch FILE] [--small]
//       measures: tables, and FILE; state is paged to DIRECTORY, where files stay. --torch: what
//       torch_times.py wrote; --small: next to nothing, and no goal is judged. Exit code 1: wrong
//       results, or a goal that was missed
#include <cstdio>
#include <fstream>
#include <optional>
#include <string_view>

#include "tests/gpu/goals.h"
#include "tests/gpu/steps.h"

namespace ebb::gpu {
namespace {

struct Asked {
  std::string plugin, json, swap, torch;
  Scale scale = Scale::full();
};

std::optional<Asked> parse(const std::vector<std::string>& words) {
  if (words.empty() || words.front().starts_with("-")) return std::nullopt;
  Asked asked{.plugin = words.front()};
  for (std::size_t i = 1; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == "--small") {
      asked.scale = Scale::small();
      continue;
    }
    std::string* const value = word == "--json"    ? &asked.json
                               : word == "--swap"  ? &asked.swap
                               : word == "--torch" ? &asked.torch
                                                   : nullptr;
    if (value == nullptr || ++i == words.size()) return std::nullopt;
    *value = words[i];
  }
  if (words.size() > 1 && (asked.json.empty() || asked.swap.empty())) return std::nullopt;
  return asked;
}

Result<> measure_batch(Bench& bench, const Batch& batch, std::vector<Orthogonalized>& all) {
  std::vector<std::pair<const char*, std::uint32_t>> ways = {{"torch", bench.choice},
                                                             {"gram", bench.choice}};
  if (bench.choice != 0) ways.emplace_back("torch", 0);
  for (const auto& [preset, choice] : ways) {
    EBB_TRY_ASSIGN(auto found, measure_newton_schulz(bench, preset, batch, choice));
    all.push_back(std::move(found));
  }
  return {};
}

Result<Findings> measure(Bench& bench, const Asked& asked) {
  Findings findings{.device = bench.device->name(),
                    .fingerprint = bench.accelerator->fingerprint(bench.choice)};
  if (asked.torch.empty())
    findings.absent = {{kKeller, "no figures of torch"}, {kGram, "no figures of torch"}};
  else
    EBB_TRY(read_torch(asked.torch, asked.scale, findings));
  EBB_TRY_ASSIGN(findings.moved, measure_copies(bench, asked.scale.copy_bytes));
  EBB_TRY_ASSIGN(const auto elementwise, measure_elementwise(bench, asked.scale.elems));
  findings.moved.insert(findings.moved.end(), elementwise.begin(), elementwise.end());
  for (const Batch& batch : asked.scale.batches())
    EBB_TRY(measure_batch(bench, batch, findings.orthogonalized));
  add_models(asked.scale, findings);
  EBB_TRY(measure_steps(bench, asked.scale, asked.swap, findings));
  return findings;
}

int fail(const formats::Error& error) {
  std::fprintf(stderr, "gpu-check: %s\n", error.message.c_str());
  if (!error.hint.empty()) std::fprintf(stderr, "  %s\n", error.hint.c_str());
  return 1;
}

int run(const Asked& asked) {
  auto bench = Bench::open(asked.plugin);
  if (!bench) {
    fail(bench.error());
    return bench.error().code == Code::unsupported ? 3 : 1;
  }
  if (asked.json.empty()) {
    std::printf("%s, %s\n", bench->device->name().c_str(),
                bench->accelerator->fingerprint(bench->choice).c_str());
    return 0;
  }
  bench->timed = asked.scale.timed;
  const auto findings = measure(*bench, asked);
  if (!findings) return fail(findings.error());
  const std::vector<Judged> goals = judge(asked.scale, *findings);
  std::printf("%s\n%s", tables_of(*findings).c_str(), text_of(goals).c_str());
  std::ofstream file(asked.json);
  file << json_of(*findings, goals);
  file.close();
  if (!file) return fail({Code::io, asked.json + ": cannot be written"});
  const std::size_t failed = count_failed(goals);
  if (failed != 0) std::printf("%zu FAILED\n", failed);
  return failed == 0 ? 0 : 1;
}

}  // namespace
}  // namespace ebb::gpu

int main(int count, char** arguments) {
  const auto asked = ebb::gpu::parse({arguments + 1, arguments + count});
  if (asked) return ebb::gpu::run(*asked);
  std::fprintf(stderr,
               "usage: ebb-gpu-bench PLUGIN [--json FILE --swap DIRECTORY [--torch FILE] "
               "[--small]]\n");
  return 2;
}
