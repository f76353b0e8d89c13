#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>

#include "tests/demo/demo.h"
#include "tools/cli/text.h"

namespace ebb::demo {
namespace {

using tools::bytes_text;

Error untrue(std::string what) { return {Code::state, std::move(what)}; }

std::string fixed(double value, int digits) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.*f", digits, value);
  return text.data();
}

std::string bytes(double value) { return bytes_text(static_cast<std::uint64_t>(value)); }

// Of the same work done several times: the round that other programs disturbed least.
double fastest(const std::vector<double>& seconds) {
  return *std::min_element(seconds.begin(), seconds.end());
}

// Read, written and sent: what was predicted is what was counted, to the byte.
Result<Line> predicted_step(const Trained& trained) {
  const Results& run = trained.results;
  std::string what = "2 a step's bytes, predicted = measured:";
  for (const std::string kind : {"read", "written", "sent"}) {
    EBB_TRY_ASSIGN(const double predicted, run.number("predicted_" + kind + "_bytes"));
    EBB_TRY_ASSIGN(const double measured, run.number(kind + "_bytes"));
    if (predicted != measured)
      return untrue("a step was to have " + fixed(predicted, 0) + " bytes " + kind + ", it had " +
                    fixed(measured, 2));
    what += " " + bytes(measured) + " " + kind;
  }
  EBB_TRY_ASSIGN(const double predicted_s, run.number("predicted_engine_s"));
  EBB_TRY_ASSIGN(const double measured_s, run.number("engine_s"));
  what += "; optimizer " + fixed(1e3 * predicted_s, 0) + " ms predicted, " +
          fixed(1e3 * measured_s, 0) + " measured" +
          (std::abs(measured_s / predicted_s - 1) > 0.1 ? ", the next forward beside it" : "");
  return Line{what, shell(trained.command)};
}

// Runs of a few steps, in turn, so that a change of the machine's speed hits both.
Result<Line> paged_against_resident(const Demo& demo) {
  std::vector<double> paged, resident;
  Command last;
  const QuietWatch watch;
  for (std::uint64_t round = 1; round <= demo.scale.pair_rounds; ++round)
    for (const std::string budget : {"all", "quarter"}) {
      const TrainingRun run{.name = "pair-" + budget,
                            .budget = budget,
                            .steps = round * demo.scale.pair_steps,
                            .more = {"--snapshot-every", "1000000", "--quiet"}};
      EBB_TRY_ASSIGN(const Results results, train_to_end(demo, run));
      EBB_TRY_ASSIGN(const double step, results.number("step_s"));
      (budget == "all" ? resident : paged).push_back(step);
      last = command_of(demo, run);
    }
  const double ratio = fastest(paged) / fastest(resident);
  const std::string what = "2 a paged step takes " + fixed(ratio, 2) +
                           " times an all-resident one (" + fixed(1e3 * fastest(paged), 0) +
                           " and " + fixed(1e3 * fastest(resident), 0) + " ms; promised: 1.10)";
  return judged({what, shell(last)}, ratio <= 1.10, watch.share_of_others());
}

Result<Line> big_sweep(const Demo& demo) {
  const std::string json = demo.path("sweep.json");
  const Command command = {demo.program("ebb-sweep"),
                           "--swap",
                           demo.path("sweep"),
                           "--state",
                           std::to_string(demo.scale.swept_bytes),
                           "--json",
                           json};
  const QuietWatch watch;
  EBB_TRY_ASSIGN(const ToolRun run, run_tool(command));
  std::fprintf(stderr, "%s", run.output.c_str());
  if (run.code != 0) return untrue("ebb-sweep ended with code " + std::to_string(run.code));
  EBB_TRY_ASSIGN(const Results results, Results::read(demo.io, json));
  EBB_TRY_ASSIGN(const double share, results.number("share_of_bound"));
  EBB_TRY_ASSIGN(const double disk_s, results.number("disk_s"));
  EBB_TRY_ASSIGN(const double processors_s, results.number("processors_s"));
  EBB_TRY_ASSIGN(const double seconds, results.number("sweep_s"));
  EBB_TRY_ASSIGN(const double state, results.number("state_bytes"));
  EBB_TRY_ASSIGN(const double disk, results.number("disk_bytes_per_s"));
  const std::string what = "2 a sweep over " + bytes(state) +
                           " of AdamW state: " + fixed(seconds, 2) + " s; the disk alone " +
                           fixed(disk_s, 2) + " s (" + fixed(disk / 1e9, 2) +
                           " GB/s), the processors alone " + fixed(processors_s, 2) +
                           " s: " + fixed(share, 2) + " of the slower (promised: 0.9)";
  return judged({what, shell(command)}, share >= 0.9, watch.share_of_others());
}

}  // namespace

Result<> add(Lines& lines, const char* claim, Result<Line> line) {
  if (!line && line.error().code == Code::cancelled) return line.error();
  if (line)
    lines.push_back(std::move(*line));
  else
    lines.push_back({claim + (" " + line.error().message), {}, Verdict::failed});
  return {};
}

Result<Lines> claim_loss(const Demo& demo, Story& story) {
  story.killed = train_killed(demo);
  EBB_TRY_ASSIGN(const Trained trained, story.killed);
  const Results& run = trained.results;
  EBB_TRY_ASSIGN(const double loss, run.number("held_out_loss"));
  EBB_TRY_ASSIGN(const double bigram, run.number("bigram_loss"));
  EBB_TRY_ASSIGN(const double speed, run.number("tokens_per_second"));
  EBB_TRY_ASSIGN(const double state, run.number("state_bytes"));
  EBB_TRY_ASSIGN(const double frames, run.number("frame_bytes"));
  EBB_TRY_ASSIGN(const double peak, run.number("peak_rss_bytes"));
  EBB_TRY_ASSIGN(const double limit, run.number("predicted_memory_bytes"));
  if (loss >= bigram)
    return untrue("held-out loss " + fixed(loss, 4) + " is not below " + fixed(bigram, 4) +
                  " of bigram counts");
  if (frames > state / 4)
    return untrue("frames and resident tiles take " + bytes(frames) + " of " + bytes(state) +
                  " of state, more than a quarter");
  if (peak > limit)
    return untrue("peak memory " + bytes(peak) + " is above the predicted " + bytes(limit));
  return Lines{{"1 held-out loss " + fixed(loss, 3) + " < " + fixed(bigram, 3) +
                    " of bigram counts; " + fixed(speed, 0) + " tokens/s; state " + bytes(state) +
                    " in " + bytes(frames) + "; peak memory " + bytes(peak) + " of " + bytes(limit),
                shell(trained.command)}};
}

Result<Lines> claim_predictions(const Demo& demo, Story& story) {
  Lines lines;
  EBB_TRY(add(lines, "2",
              story.killed ? predicted_step(*story.killed) : Result<Line>(story.killed.error())));
  EBB_TRY(add(lines, "2", paged_against_resident(demo)));
  EBB_TRY(add(lines, "2", big_sweep(demo)));
  return lines;
}

Result<Lines> claim_export(const Demo&, Story& story) {
  EBB_TRY_ASSIGN(const Trained trained, story.killed);
  const Results& run = trained.results;
  EBB_TRY_ASSIGN(const double stall, run.number("snapshot_stall_s"));
  EBB_TRY_ASSIGN(const double snapshots, run.number("snapshots"));
  EBB_TRY_ASSIGN(const double step, run.number("export_step"));
  EBB_TRY_ASSIGN(const double size, run.number("export_bytes"));
  EBB_TRY_ASSIGN(const double seconds, run.number("export_s"));
  EBB_TRY_ASSIGN(const double last, run.number("last_step"));
  if (step >= last) return untrue("the export was not taken while training went on");
  return Lines{{"3 " + fixed(snapshots, 0) + " snapshots, longest stall " + fixed(1e3 * stall, 2) +
                    " ms; step " + fixed(step, 0) + " as PyTorch DCP in the background: " +
                    bytes(size) + " in " + fixed(seconds, 2) + " s",
                shell(trained.command)}};
}

Result<Lines> claim_one_hash(const Demo& demo, Story& story) {
  story.resident = train_resident(demo);
  story.from_export = train_from_export(demo);
  Lines lines;
  std::string wanted;
  for (const Result<Trained>* run : {&story.resident, &story.killed, &story.from_export}) {
    EBB_TRY_ASSIGN(const Trained trained, *run);
    EBB_TRY_ASSIGN(const std::string store, trained.results.text("store"));
    EBB_TRY_ASSIGN(const std::string hash, hash_of(demo, store));
    EBB_TRY_ASSIGN(const double step, trained.results.number("last_step"));
    if (step != static_cast<double>(demo.scale.steps))
      return untrue(trained.what + ": ended at step " + fixed(step, 0));
    if (wanted.empty()) wanted = hash;
    if (hash != wanted) return untrue(trained.what + ": hash " + hash + " is not " + wanted);
    lines.push_back({"4 " + hash.substr(0, 16) + " " + trained.what, hash_command(demo, store)});
  }
  return lines;
}

}  // namespace ebb::demo
