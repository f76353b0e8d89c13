// gpt-train: trains the GPT, resumable at any moment. The seven things a trainer does with Ebb are
// open, install, gradient_ready, set_learning_rate, step, snapshot and wait: train.cpp.
#include <algorithm>
#include <cstdio>
#include <set>
#include <thread>

#include "ebb/formats/registry.h"
#include "ebb/libmuon/step/forecast.h"
#include "ebb/libswap/queue/disk_probe.h"
#include "ebb/libswap/sys/process.h"
#include "ebb/libswap/trace.h"
#include "ebb/libswap/tree/file_tree.h"
#include "examples/gpt/bigram.h"
#include "examples/gpt/report.h"
#include "examples/gpt/settings.h"
#include "examples/gpt/setup.h"
#include "examples/gpt/train.h"
#include "tools/cli/result_file.h"
#include "tools/cli/run.h"

namespace ebb {

namespace gpt {
namespace {

using tools::Exit;

void say(const std::string& line) { std::fprintf(stderr, "%s\n", line.c_str()); }

Result<std::unique_ptr<libswap::IoQueue>> open_io() {
  EBB_TRY_ASSIGN(libswap::ChosenBackend chosen,
                 libswap::open_backend(libswap::BackendChoice::automatic));
  if (!chosen.note.empty()) say("note: " + chosen.note);
  return libswap::IoQueue::start(std::move(chosen.backend), {});
}

Result<> say_how_io_is(libswap::IoQueue& io, const SwapDirectories& swap) {
  std::set<std::string> all;
  for (const auto& directory : swap) {
    EBB_TRY_ASSIGN(const auto notes, libswap::io_notes(io.backend(), directory->path()));
    all.insert(notes.begin(), notes.end());
  }
  for (const std::string& note : all) say("note: " + note);
  return {};
}

Result<std::unique_ptr<Checkpoint>> open_source(const Settings& settings) {
  if (!settings.resume_from) return std::unique_ptr<Checkpoint>();
  EBB_TRY_ASSIGN(auto tree, libswap::open_tree(*settings.resume_from));
  return formats::describe(std::move(tree));
}

// Seconds of one optimizer step and of making a store: this machine's cores and this disk, probed
// now.
Result<> predict_seconds(const std::vector<libmuon::EngineConfig>& engines, libswap::IoQueue& io,
                         const std::filesystem::path& swap, Facts& facts) {
  const libswap::DiskProbe probe{
      .bytes = 64 * formats::MiB,
      .operation_bytes = static_cast<std::uint32_t>(engines.front().tile_bytes)};
  EBB_TRY_ASSIGN(const libswap::DiskLimit disk, libswap::measure_disk(io, swap, probe));
  const auto rates = libmuon::probe_compute(engines.front().model);
  const std::uint32_t cores = std::max(1u, std::thread::hardware_concurrency());
  EBB_TRY_ASSIGN(const auto forecast, libmuon::forecast(engines.front(), rates, disk.mixed, cores));
  facts.predicted_engine_s = forecast.step_s;
  facts.disk_bytes_per_s = disk.mixed;
  if (disk.write > 0)
    facts.predicted_create_s = static_cast<double>(facts.predicted.disk_bytes) / disk.write;
  return {};
}

// The held-out bytes that the model is judged on: whole windows.
std::span<const std::uint8_t> judged(const Corpus& corpus, std::size_t length) {
  const std::size_t windows = (corpus.held_out.size() - 1) / length;
  return std::span(corpus.held_out).first(windows * length + 1);
}

std::optional<tools::ResultFile> result_file(std::string_view flag,
                                             const std::optional<std::filesystem::path>& path,
                                             std::string_view kind, std::string_view beginning) {
  if (!path) return std::nullopt;
  return tools::ResultFile{flag, path->string(), kind, beginning};
}

Result<Exit> work(tools::Console& console, const tools::Arguments& arguments) {
  EBB_TRY_ASSIGN(const Settings settings, settings_from(arguments));
  const auto results = result_file("--json", settings.json, "result of gpt-train", kResults);
  const auto timeline =
      result_file("--trace", settings.trace, "timeline", libswap::Trace::kBeginning);
  for (const auto* file : {&results, &timeline})
    if (*file) EBB_TRY(check_replaceable(**file));
  tools::catch_stop_signals();
  tools::catch_preemption();
  if (settings.print_pid == Report::on) say(compose("pid {}", libswap::process_id()));
  EBB_TRY_ASSIGN(const auto io, open_io());
  EBB_TRY_ASSIGN(Model model, Model::make({.layers = settings.layers}));
  EBB_TRY(model.freeze(settings.freeze));
  const std::size_t length = model.config.sequence + 1;
  EBB_TRY_ASSIGN(const Corpus corpus, settings.text ? load_text(*io, *settings.text, length)
                                                    : load_licences(*io, kLicences, length));
  std::optional<libswap::Trace> trace;
  if (settings.trace) trace.emplace();
  EBB_TRY_ASSIGN(const auto engines, engine_configs(settings, model, trace ? &*trace : nullptr));
  EBB_TRY_ASSIGN(const Predicted predicted, predict(engines, model, corpus));
  EBB_TRY_ASSIGN(const auto swap, open_swap(*io, settings.swap, settings.ranks));
  EBB_TRY(say_how_io_is(*io, swap));
  EBB_TRY_ASSIGN(const auto source, open_source(settings));

  std::unique_ptr<StatsFile> stats;
  if (settings.stats) {
    EBB_TRY_ASSIGN(stats, StatsFile::open(*io, *settings.stats, settings.ranks));
  }

  Facts facts{settings, model, corpus, predicted};
  facts.bigram_loss = Bigram(corpus.train).loss(judged(corpus, model.config.sequence));
  if (settings.texts == Report::on || results) {
    const auto probed = predict_seconds(engines, *io, settings.swap.directories.front(), facts);
    if (!probed) say("note: no time is predicted: " + probed.error().message);
  }
  if (swap.front()->current()) facts.predicted_create_s.reset();
  if (settings.texts == Report::on) console.print(plan_text(facts));

  const Run run{settings, model,      corpus,       engines,
                *io,      swap,       source.get(), tools::stop_requested(),
                say,      stats.get()};
  EBB_TRY_ASSIGN(Outcome outcome, train(run));
  if (trace) outcome.timeline = trace->step_figures();
  facts.peak_rss_bytes = libswap::peak_resident_bytes();
  if (settings.texts == Report::on) console.print(outcome_text(facts, outcome));
  if (results) EBB_TRY(write_result(*results, outcome_json(facts, outcome)));
  if (timeline) EBB_TRY(write_result(*timeline, trace->to_chrome_json()));
  if (!outcome.exported) return outcome.exported.error();
  if (outcome.stopped) {
    say(compose("stopped at step {}, nothing is lost; the same command goes on",
                outcome.last_step));
    return tools::preempted() ? Exit::success : Exit::interrupted;
  }
  return Exit::success;
}

}  // namespace
}  // namespace gpt

int program_main(int argc, char** argv) {
  return tools::run_program(gpt::train_program(), argc, argv, gpt::work);
}

}  // namespace ebb

int main(int argc, char** argv) { return ebb::program_main(argc, argv); }
