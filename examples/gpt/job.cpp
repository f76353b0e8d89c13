#include "examples/gpt/job.h"

#include <algorithm>
#include <cstdio>
#include <set>
#include <thread>

#include "ebb/formats/describe.h"
#include "ebb/libmuon/step/forecast.h"
#include "ebb/libswap/queue/disk_probe.h"
#include "ebb/libswap/sys/process.h"
#include "ebb/libswap/trace.h"
#include "ebb/libswap/tree/file_tree.h"
#include "examples/gpt/bigram.h"
#include "examples/gpt/muon.h"
#include "examples/gpt/report.h"
#include "examples/gpt/settings.h"
#include "examples/gpt/setup.h"
#include "examples/gpt/train.h"
#include "tools/cli/result_file.h"

namespace ebb::gpt {
namespace {

using tools::Exit;

using Say = std::function<void(const std::string&)>;

Result<std::unique_ptr<libswap::IoQueue>> open_io(const Say& say,
                                                  const libswap::IoQueue::Options& options) {
  EBB_TRY_ASSIGN(libswap::ChosenBackend chosen,
                 libswap::open_backend(libswap::BackendChoice::automatic));
  if (!chosen.note.empty()) say("note: " + chosen.note);
  return libswap::IoQueue::start(std::move(chosen.backend), options);
}

Result<> say_how_io_is(const Say& say, libswap::IoQueue& io, const SwapDirectories& swap) {
  std::set<std::string> all;
  for (const auto& directory : swap) {
    if (directory == nullptr) continue;
    EBB_TRY_ASSIGN(const auto notes, libswap::io_notes(io.backend(), directory->path()));
    all.insert(notes.begin(), notes.end());
  }
  for (const std::string& note : all) say("note: " + note);
  return {};
}

// A command that goes on names it still, though it may be gone by then.
Result<std::unique_ptr<Checkpoint>> open_source(const Settings& settings,
                                                const SwapDirectories& swap, const Say& say) {
  if (!settings.resume_from) return std::unique_ptr<Checkpoint>();
  if (resumes(swap)) {
    say(compose("note: --resume-from {} is not used: {} holds a store, which is resumed",
                settings.resume_from->string(), settings.swap.directories.front().string()));
    return std::unique_ptr<Checkpoint>();
  }
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
  EBB_TRY_ASSIGN(facts.forecast, libmuon::forecast(engines.front(), rates, disk.mixed, cores));
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

// The job of one process, piece by piece; everything is borrowed.
class Job {
 public:
  Job(tools::Console& console, const Settings& settings, Team& team)
      : console_(console),
        settings_(settings),
        team_(team),
        results_(result_file("--json", settings.json, "result of gpt-train", kResults)),
        timeline_(result_file("--trace", settings.trace, "timeline", libswap::Trace::kBeginning)) {}

  Result<Exit> run();

 private:
  bool shows_texts() const { return team_.leads() && settings_.texts == Report::on; }
  Result<> check_files() const;
  Result<Model> make_model() const;
  Result<std::unique_ptr<StatsFile>> open_stats(libswap::IoQueue& io) const;
  Result<> predict(Facts& facts, const std::vector<libmuon::EngineConfig>& engines,
                   libswap::IoQueue& io, const SwapDirectories& swap) const;
  Result<> report(const Facts& facts, const Outcome& outcome, const libswap::Trace* trace) const;

  tools::Console& console_;
  const Settings& settings_;
  Team& team_;
  const std::optional<tools::ResultFile> results_, timeline_;
  const Say say_ = [this](const std::string& line) {
    if (team_.leads()) std::fprintf(stderr, "%s\n", line.c_str());
  };
};

Result<> Job::check_files() const {
  for (const auto* file : {&results_, &timeline_})
    if (team_.leads() && *file) EBB_TRY(check_replaceable(**file));
  return {};
}

Result<Model> Job::make_model() const {
  EBB_TRY_ASSIGN(Model model, Model::make(settings_.model));
  EBB_TRY(model.freeze(settings_.freeze));
  return model;
}

Result<std::unique_ptr<StatsFile>> Job::open_stats(libswap::IoQueue& io) const {
  if (!settings_.stats || !team_.leads()) return std::unique_ptr<StatsFile>();
  return StatsFile::open(io, *settings_.stats, settings_.ranks);
}

// Where it is wanted; the others wait meanwhile.
Result<> Job::predict(Facts& facts, const std::vector<libmuon::EngineConfig>& engines,
                      libswap::IoQueue& io, const SwapDirectories& swap) const {
  facts.bigram_loss =
      Bigram(facts.corpus.train).loss(judged(facts.corpus, facts.model.config.sequence));
  if (team_.leads() && (shows_texts() || results_)) {
    const auto probed = predict_seconds(engines, io, settings_.swap.directories.front(), facts);
    if (!probed) say_("note: no time is predicted: " + probed.error().message);
  }
  if (resumes(swap)) facts.predicted_create_s.reset();
  if (shows_texts()) console_.print_now(plan_text(facts));
  return {};
}

Result<> Job::report(const Facts& facts, const Outcome& outcome,
                     const libswap::Trace* trace) const {
  if (!team_.leads()) return {};
  if (shows_texts()) console_.print(outcome_text(facts, outcome));
  if (results_) EBB_TRY(write_result(*results_, outcome_json(facts, outcome)));
  if (timeline_) EBB_TRY(write_result(*timeline_, trace->to_chrome_json()));
  return {};
}

Result<Exit> Job::run() {
  EBB_TRY(check_files());
  tools::catch_stop_signals();
  tools::catch_preemption();
  if (settings_.print_pid == Report::on)
    std::fprintf(stderr, "pid %llu\n", static_cast<unsigned long long>(libswap::process_id()));
  EBB_TRY_ASSIGN(const auto io, open_io(say_, settings_.io));
  EBB_TRY_ASSIGN(const Model model, make_model());
  const std::size_t length = model.config.sequence + 1;
  EBB_TRY_ASSIGN(const Corpus corpus, settings_.text ? load_text(*io, *settings_.text, length)
                                                     : load_licences(*io, kLicences, length));
  std::optional<libswap::Trace> trace;
  if (settings_.trace) trace.emplace();
  EBB_TRY_ASSIGN(const auto engines, engine_configs(settings_, model, trace ? &*trace : nullptr));
  EBB_TRY_ASSIGN(const Predicted predicted,
                 gpt::predict(engines, model, corpus, team_.processes()));
  EBB_TRY_ASSIGN(const auto swap, open_swap(*io, settings_.swap, team_));
  EBB_TRY(say_how_io_is(say_, *io, swap));
  EBB_TRY_ASSIGN(const auto source, open_source(settings_, swap, say_));
  EBB_TRY_ASSIGN(const auto stats, open_stats(*io));

  Facts facts{settings_, model, corpus, predicted};
  EBB_TRY(predict(facts, engines, *io, swap));
  const Run run{settings_, model,      corpus,       engines,
                *io,       swap,       source.get(), tools::stop_requested(),
                say_,      stats.get()};
  EBB_TRY_ASSIGN(Outcome outcome, train(run, team_));
  if (trace) outcome.timeline = trace->step_figures();
  EBB_TRY_ASSIGN(facts.peak_rss_bytes, team_.sum(libswap::peak_resident_bytes()));
  EBB_TRY(report(facts, outcome, trace ? &*trace : nullptr));
  if (!outcome.exported) return outcome.exported.error();
  if (!outcome.stopped) return Exit::success;
  say_(compose("stopped at step {}, nothing is lost; the same command goes on", outcome.last_step));
  return tools::preempted() ? Exit::success : Exit::interrupted;
}

}  // namespace

Result<Exit> run_job(tools::Console& console, const tools::Arguments& arguments,
                     std::optional<std::uint32_t> world, const MakeTeam& make_team) {
  if (arguments.has("list-presets")) {
    console.print(preset_list());
    return Exit::success;
  }
  EBB_TRY_ASSIGN(const Settings settings, settings_from(arguments, world));
  EBB_TRY_ASSIGN(const auto team, make_team(settings));
  return Job(console, settings, *team).run();
}

}  // namespace ebb::gpt
