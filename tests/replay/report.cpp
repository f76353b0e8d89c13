#include "tests/replay/report.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <set>

#include "ebb/formats/core/bf16.h"
#include "ebb/formats/core/compose.h"
#include "ebb/formats/core/number_text.h"
#include "tests/replay/formula.h"
#include "tests/replay/rehearsal.h"
#include "tests/replay/spec.h"

namespace ebb::replay {
namespace {

// ||a - b|| / ||b||, or the former where b is 0; infinity where a number is not finite.
template <typename A, typename B>
double distance(const A& a, const B& b) {
  double difference = 0, norm = 0;
  for (std::size_t i = 0; i < b.size(); ++i) {
    const double x = double{a[i]}, y = double{b[i]};
    difference += (x - y) * (x - y);
    norm += y * y;
  }
  const double error = norm > 0 ? std::sqrt(difference / norm) : std::sqrt(difference);
  return std::isfinite(error) ? error : std::numeric_limits<double>::infinity();
}

template <typename A>
Numbers less(const A& a, const std::vector<float>& b) {
  Numbers all(b.size());
  for (std::size_t i = 0; i < b.size(); ++i) all[i] = double{a[i]} - double{b[i]};
  return all;
}

// A number's place among those of bf16.
std::int64_t bf16_place(float value) {
  const auto bits = static_cast<std::int64_t>(formats::f32_to_bf16(value));
  return bits >= 0x8000 ? 0x8000 - bits : bits;
}

// "update.5_vs_fp64" is {"update", 5, "_vs_fp64"}.
struct Key {
  std::string of;
  std::uint64_t step = 0;
  std::string suffix;
};
Key key_of(const std::string& name) {
  const std::size_t dot = name.find('.'), end = name.find('_', std::min(dot, name.size()));
  if (dot == name.npos || end == name.npos) return {name, 0, {}};
  const auto step = formats::parse_number<std::uint64_t>(name.substr(dot + 1, end - dot - 1));
  if (!step) return {name, 0, {}};
  return {name.substr(0, dot), *step, name.substr(end)};
}

// What a run is held to.
struct Tolerances {
  std::vector<std::pair<std::string, double>> limits;
  bool told_only = false;  // none of them
  bool finite_only = false;

  static Result<Tolerances> of(const Fields& fields) {
    Tolerances all;
    for (const std::string& name : fields.names()) {
      if (name == "rule" || !fields.has(name)) continue;
      EBB_TRY_ASSIGN(const double limit, fields.number(name));
      all.limits.emplace_back(name, limit);
    }
    if (!fields.has("rule")) return all;
    EBB_TRY_ASSIGN(const std::string rule, fields.text("rule"));
    const bool special = rule.starts_with("special");
    all.finite_only = special && rule.find("finite output required") != rule.npos;
    all.told_only = special && !all.finite_only;
    return all;
  }
  std::set<std::uint64_t> steps() const {
    std::set<std::uint64_t> all;
    for (const auto& [name, limit] : limits)
      if (const Key key = key_of(name); key.step > 0) all.insert(key.step);
    return all;
  }
};

class MuonRun {
 public:
  MuonRun(const Case& one, std::string name, std::optional<libmuon::Bf16> bf16, Scratch& scratch,
          Report& report)
      : case_(one), name_(std::move(name)), bf16_(bf16), scratch_(scratch), report_(report) {}

  Result<> run(const Fields& run) {
    EBB_TRY_ASSIGN(const Fields spec, run.object("spec"));
    EBB_TRY_ASSIGN(const Fields tolerance, run.object("tolerance"));
    EBB_TRY_ASSIGN(tolerances_, Tolerances::of(tolerance));
    EBB_TRY_ASSIGN(const libmuon::MuonSpec settings, muon_spec_of(spec, case_));
    EBB_TRY_ASSIGN(formula_, formula_of(spec));
    if (const auto valid = validate(settings); !valid) return refused(valid.error());
    for (const auto& [name, limit] : tolerances_.limits) EBB_TRY(check_name(tolerance, name));
    EBB_TRY(train(settings));
    return alone(settings);
  }

 private:
  Result<> refused(const Error& why) {
    if (!tolerances_.told_only) return why;
    report_.notes.push_back(compose("{}: not held, and refused: {}", name_, why.message));
    return {};
  }

  static Result<> check_name(const Fields& tolerance, const std::string& name) {
    const auto [of, step, suffix] = key_of(name);
    const bool update = of == "update" && (suffix == "_vs_fp64" || suffix == "_vs_trace");
    const bool param = of == "param" && (suffix == "_max_bf16_ulps_vs_trace" ||
                                         suffix == "_share_of_elements_that_may_differ");
    if (update || param || name == "momentum_vs_trace" || name == "O_given_U_vs_fp64") return {};
    return tolerance.wrong(name, "is no tolerance that this program knows");
  }

  double limit(const std::string& name) const {
    for (const auto& [key, limit] : tolerances_.limits)
      if (key == name) return limit;
    return -1;
  }
  void tell(const std::string& what, double error, double limit) {
    const bool formula = !what.starts_with("momentum") && what != "not finite";
    const bool held = limit >= 0 && !tolerances_.told_only && !(tolerances_.finite_only && formula);
    report_.lines.push_back({name_, what, error, limit, held});
  }

  Result<> train(const libmuon::MuonSpec& settings) {
    EBB_TRY_ASSIGN(start_, case_.tensor("param.0"));
    EBB_TRY_ASSIGN(
        const auto engine,
        Rehearsal::open({case_.shape(), case_.dtype(), settings, start_, bf16_}, scratch_.next()));
    Witness witness(formula_, case_.shape(), Numbers(start_.begin(), start_.end()));
    std::set<std::uint64_t> steps = tolerances_.steps();
    for (const std::string& run : {name_, std::string("as_is")})
      for (const std::uint64_t step : case_.steps_of(run, "momentum")) steps.insert(step);
    for (std::uint64_t step = 1; step <= case_.steps(); ++step) {
      EBB_TRY_ASSIGN(const auto gradient, case_.gradient(step));
      EBB_TRY(engine->step(gradient));
      witness.step(gradient);
      if (!steps.contains(step)) continue;
      EBB_TRY(compare_update(step, engine->weights(), witness.param()));
      EBB_TRY(compare_momentum(step, *engine));
      EBB_TRY(compare_second_moment(step, *engine));
    }
    const auto& last = engine->weights();
    const auto lost = std::ranges::count_if(last, [](float w) { return !std::isfinite(w); });
    tell("not finite", static_cast<double>(lost), 0);
    return {};
  }

  Result<> compare_update(std::uint64_t step, const std::vector<float>& weights,
                          const Numbers& witness) {
    const std::string update = compose("update.{}", step), param = compose("param.{}", step);
    const Numbers ours = less(weights, start_);
    if (const double most = limit(update + "_vs_fp64"); most >= 0)
      tell(update + "_vs_fp64", distance(ours, less(witness, start_)), most);
    const std::string traced = compose("{}.param.{}", name_, step);
    if (!case_.has(traced)) return {};
    EBB_TRY_ASSIGN(const auto theirs, case_.tensor(traced));
    if (theirs.size() != weights.size())
      return Error{Code::usage, compose("trace.safetensors: {} has another size", traced)};
    tell(update + "_vs_trace", distance(ours, less(theirs, start_)), limit(update + "_vs_trace"));
    std::int64_t furthest = 0, differing = 0;
    for (std::size_t i = 0; i < theirs.size(); ++i) {
      const std::int64_t away = std::abs(bf16_place(weights[i]) - bf16_place(theirs[i]));
      furthest = std::max(furthest, away);
      differing += away != 0 ? 1 : 0;
    }
    if (const double most = limit(param + "_max_bf16_ulps_vs_trace"); most >= 0)
      tell(param + "_max_bf16_ulps_vs_trace", static_cast<double>(furthest), most);
    if (const double most = limit(param + "_share_of_elements_that_may_differ"); most >= 0)
      tell(param + "_share_of_elements_that_may_differ",
           static_cast<double>(differing) / static_cast<double>(theirs.size()), most);
    return {};
  }

  // A run's momentum is left out of the trace where it is that of as_is.
  Result<> compare_momentum(std::uint64_t step, Rehearsal& engine) {
    for (const std::string& run : {name_, std::string("as_is")}) {
      const std::string traced = compose("{}.momentum.{}", run, step);
      if (!case_.has(traced)) continue;
      EBB_TRY_ASSIGN(const auto theirs, case_.tensor(traced));
      EBB_TRY_ASSIGN(const auto ours, engine.state("momentum_buffer"));
      if (theirs.size() != ours.size())
        return Error{Code::usage, compose("trace.safetensors: {} has another size", traced)};
      tell(compose("momentum.{}_vs_trace", step), distance(ours, theirs),
           limit("momentum_vs_trace"));
      return {};
    }
    return {};
  }

  // Told: no case holds anything to it.
  Result<> compare_second_moment(std::uint64_t step, Rehearsal& engine) {
    constexpr std::string_view kState = "second_momentum_buffer";
    const std::string traced = compose("{}.{}.{}", name_, kState, step);
    if (!case_.has(traced)) return {};
    EBB_TRY_ASSIGN(const auto theirs, case_.tensor(traced));
    EBB_TRY_ASSIGN(const auto ours, engine.state(kState));
    if (theirs.size() != ours.size())
      return Error{Code::usage, compose("trace.safetensors: {} has another size", traced)};
    tell(compose("{}.{}_vs_trace", kState, step), distance(ours, theirs), -1);
    return {};
  }

  // Newton-Schulz of the update in the trace, by the engine too.
  Result<> alone(const libmuon::MuonSpec& settings) {
    const double most = limit("O_given_U_vs_fp64");
    const std::string traced = name_ + ".U.1";
    if (most < 0 || !case_.has(traced)) return {};
    EBB_TRY_ASSIGN(const auto u, case_.tensor(traced));
    EBB_TRY_ASSIGN(const Shape shape, case_.shape_of(traced));
    if (shape.size() < 2) return Error{Code::usage, compose("{} is no matrix", traced)};
    libmuon::MuonSpec only = newton_schulz_alone(settings);
    // The update of a bf16 parameter is bf16 as it comes; what is made of it is not.
    if (case_.dtype() == DType::bf16 && only.norm_of != libmuon::NormOf::handed)
      only.handed = libmuon::Precision::fp32;
    EBB_TRY_ASSIGN(const auto engine,
                   Rehearsal::open({shape, DType::f32, only, std::vector<float>(u.size()), bf16_},
                                   scratch_.next()));
    EBB_TRY(engine->step(u));
    const std::uint64_t rows = shape[shape.size() - 2], cols = shape.back();
    Numbers wanted;
    for (std::size_t first = 0; first < u.size(); first += rows * cols) {
      const auto begin = u.begin() + static_cast<std::ptrdiff_t>(first);
      const Numbers o =
          newton_schulz(formula_.ns, rows, cols,
                        Numbers(begin, begin + static_cast<std::ptrdiff_t>(rows * cols)));
      for (const double value : o) wanted.push_back(-value);
    }
    tell("O_given_U_vs_fp64", distance(engine->weights(), wanted), most);
    return {};
  }

  const Case& case_;
  const std::string name_;
  const std::optional<libmuon::Bf16> bf16_;
  Scratch& scratch_;
  Report& report_;
  Tolerances tolerances_;
  Formula formula_;
  std::vector<float> start_;
};

// AdamW's runs have one formula and one tolerance; what each of them is away is told.
Result<> replay_adam(const Case& one, Scratch& scratch, Report& report) {
  EBB_TRY_ASSIGN(const Fields spec, one.file().object("spec"));
  EBB_TRY_ASSIGN(const Fields tolerance, one.file().object("tolerance"));
  EBB_TRY_ASSIGN(const Fields runs, one.file().object("runs"));
  EBB_TRY_ASSIGN(const double update, tolerance.number("update_vs_fp64"));
  EBB_TRY_ASSIGN(const AdamFormula formula, adam_formula_of(spec));
  EBB_TRY_ASSIGN(const libmuon::AdamSpec settings, adam_spec_of(spec));
  EBB_TRY_ASSIGN(const auto start, one.tensor("param.0"));
  EBB_TRY_ASSIGN(const auto engine,
                 Rehearsal::open({one.shape(), one.dtype(), settings, start}, scratch.next()));
  AdamWitness witness(formula, Numbers(start.begin(), start.end()));
  std::set<std::uint64_t> steps = {one.steps()};
  for (const std::string& run : runs.names())
    for (const std::uint64_t step : one.steps_of(run, "param")) steps.insert(step);
  for (std::uint64_t step = 1; step <= one.steps(); ++step) {
    EBB_TRY_ASSIGN(const auto gradient, one.gradient(step));
    EBB_TRY(engine->step(gradient));
    witness.step(gradient);
    if (!steps.contains(step)) continue;
    const Numbers ours = less(engine->weights(), start);
    report.lines.push_back({"adamw", compose("update.{}_vs_fp64", step),
                            distance(ours, less(witness.param(), start)), update});
    for (const char* state : {"exp_avg", "exp_avg_sq"}) {
      EBB_TRY_ASSIGN(const double most, tolerance.number(state));
      EBB_TRY_ASSIGN(const auto values, engine->state(state));
      const bool first = std::string_view(state) == "exp_avg";
      report.lines.push_back({"adamw", compose("{}.{}_vs_fp64", state, step),
                              distance(values, first ? witness.first() : witness.second()), most});
    }
    for (const std::string& run : runs.names()) {
      const std::string traced = compose("{}.param.{}", run, step);
      if (!one.has(traced)) continue;
      EBB_TRY_ASSIGN(const auto theirs, one.tensor(traced));
      report.lines.push_back({run, compose("update.{}_vs_trace", step),
                              distance(ours, less(theirs, start)), -1, false});
    }
  }
  return {};
}

}  // namespace

bool Report::good() const { return std::ranges::all_of(lines, &Measured::good); }

std::string Report::text() const {
  std::string all;
  for (const Measured& line : lines) {
    char text[160];
    const char* const verdict = !line.held ? "told only" : line.good() ? "holds" : "FAILS";
    char most[32] = "-";
    if (line.tolerance >= 0) std::snprintf(most, sizeof most, "%.3g", line.tolerance);
    std::snprintf(text, sizeof text, "  %-8s %-42s %10.3g  of %-9s %s\n", line.run.c_str(),
                  line.what.c_str(), line.error, most, verdict);
    all += text;
  }
  for (const std::string& note : notes) all += "  " + note + "\n";
  return all;
}

Result<Report> replay(const Case& one, std::optional<libmuon::Bf16> bf16) {
  Report report;
  EBB_TRY_ASSIGN(const auto scratch, Scratch::make());
  EBB_TRY_ASSIGN(const Fields runs, one.file().object("runs"));
  if (one.file().has("spec")) {
    EBB_TRY(replay_adam(one, *scratch, report));
    return report;
  }
  for (const std::string& name : runs.names()) {
    EBB_TRY_ASSIGN(const Fields run, runs.object(name));
    EBB_TRY(MuonRun(one, name, bf16, *scratch, report).run(run));
  }
  return report;
}

}  // namespace ebb::replay
