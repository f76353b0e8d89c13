#include <algorithm>
#include <array>
#include <cstdio>

#include "examples/gpt/demo.h"
#include "tools/cli/text.h"

namespace ebb::gpt {
namespace {

using formats::Code;
using formats::Error;
using tools::bytes_text;

Error untrue(std::string what) { return {Code::state, std::move(what), {}}; }

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

std::string training_command(const Demo& demo, const TrainingRun& run) {
  return shell(command_of(demo, run));
}

// Read, written and sent: what was predicted is what was counted, to the byte.
Result<Line> predicted_step(const Demo& demo, const Story& story) {
  const Results& run = story.killed;
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
          fixed(1e3 * measured_s, 0) + " measured";
  return Line{what, training_command(demo, story.killed_run)};
}

// Runs of a few steps, in turn, so that a change of the machine's speed hits both.
Result<Line> paged_against_resident(const Demo& demo) {
  std::vector<double> paged, resident;
  std::vector<std::string> last;
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
  if (ratio > 1.10)
    return untrue("a paged step takes " + fixed(ratio, 3) + " times an all-resident one, " +
                  fixed(1e3 * fastest(paged), 1) + " ms; at most 1.10 was promised");
  return Line{"2 a paged step takes " + fixed(ratio, 2) + " times an all-resident one (" +
                  fixed(1e3 * fastest(paged), 0) + " and " + fixed(1e3 * fastest(resident), 0) +
                  " ms; at most 1.10)",
              shell(last)};
}

Result<Line> big_sweep(const Demo& demo) {
  const std::string json = demo.path("sweep.json");
  const std::vector<std::string> command = {demo.program("ebb-sweep"),
                                            "--swap",
                                            demo.path("sweep"),
                                            "--state",
                                            std::to_string(demo.scale.swept_bytes),
                                            "--json",
                                            json};
  EBB_TRY_ASSIGN(const ToolRun run, run_tool(command));
  std::fprintf(stderr, "%s", run.output.c_str());
  if (run.code != 0) return untrue("ebb-sweep ended with code " + std::to_string(run.code));
  EBB_TRY_ASSIGN(const Results results, Results::read(demo.io, json));
  EBB_TRY_ASSIGN(const double share, results.number("share_of_disk"));
  EBB_TRY_ASSIGN(const double seconds, results.number("sweep_s"));
  EBB_TRY_ASSIGN(const double state, results.number("state_bytes"));
  EBB_TRY_ASSIGN(const double disk, results.number("disk_bytes_per_s"));
  const std::string what = "a sweep over " + bytes(state) +
                           " of AdamW state: " + fixed(seconds, 2) + " s, " + fixed(share, 2) +
                           " of this disk's " + fixed(disk / 1e9, 2) + " GB/s";
  if (share < 0.9) return untrue(what + "; 0.9 was promised");
  return Line{"2 " + what, shell(command)};
}

}  // namespace

Result<Lines> claim_loss(const Demo& demo, const Story& story) {
  const Results& run = story.killed;
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
                training_command(demo, story.killed_run)}};
}

Result<Lines> claim_predictions(const Demo& demo, const Story& story) {
  Lines lines;
  EBB_TRY_ASSIGN(Line step, predicted_step(demo, story));
  lines.push_back(std::move(step));
  EBB_TRY_ASSIGN(Line pair, paged_against_resident(demo));
  lines.push_back(std::move(pair));
  EBB_TRY_ASSIGN(Line sweep, big_sweep(demo));
  lines.push_back(std::move(sweep));
  return lines;
}

Result<Lines> claim_export(const Demo& demo, const Story& story) {
  const Results& run = story.killed;
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
                training_command(demo, story.killed_run)}};
}

Result<Lines> claim_one_hash(const Demo& demo, const Story& story) {
  struct Row {
    std::string what;
    const Results& results;
    const TrainingRun& run;
  };
  std::string kills;
  for (const Killed& killed : story.kills)
    kills += (kills.empty() ? "" : " and ") + std::to_string(killed.after_step);
  const std::array rows = {
      Row{"4 ranks, all in memory, never killed", story.resident, story.resident_run},
      Row{"4, 3, 2 ranks, a quarter, SIGKILL after steps " + kills + ", other tiles", story.killed,
          story.killed_run},
      Row{"no store: resumed from the DCP export on 3 ranks", story.from_export,
          story.from_export_run},
  };
  Lines lines;
  std::string wanted;
  for (const Row& row : rows) {
    EBB_TRY_ASSIGN(const std::string store, row.results.text("store"));
    EBB_TRY_ASSIGN(const std::string hash, hash_of(demo, store));
    EBB_TRY_ASSIGN(const double step, row.results.number("last_step"));
    if (step != static_cast<double>(demo.scale.steps))
      return untrue(row.what + ": ended at step " + fixed(step, 0));
    if (wanted.empty()) wanted = hash;
    if (hash != wanted) return untrue(row.what + ": hash " + hash + " is not " + wanted);
    lines.push_back({"4 " + hash.substr(0, 16) + " " + row.what,
                     shell({demo.program("ckpt-inspect"), store, "--tensors", "--digest"})});
  }
  return lines;
}

}  // namespace ebb::gpt
