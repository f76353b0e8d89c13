// What a run says at its end: lines for people, one flat JSON object for programs.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>

#include "ebb/libmuon/plan/traffic.h"
#include "ebb/libmuon/step/forecast.h"
#include "examples/gpt/setup.h"
#include "examples/gpt/train.h"

namespace ebb::gpt {

struct Facts {
  const Settings& settings;
  const Model& model;
  const Corpus& corpus;
  const Predicted& predicted;
  // Of an optimizer step, and of writing a new store; none where the disk could not be probed.
  std::optional<libmuon::Forecast> forecast;
  std::optional<double> predicted_create_s;
  std::optional<double> disk_bytes_per_s;  // reads and writes together, probed
  double bigram_loss = 0;
  std::uint64_t peak_rss_bytes = 0;
};

// Medians over the steps of a run.
struct Typical {
  double gradients_s = 0;
  double waited_s = 0;
  double engine_s = 0;
  double swept_s = 0;
  double exchange_s = 0;
  double step_s() const { return gradients_s + waited_s; }
};
Typical typical_step(const Outcome& outcome);

// Per step over all ranks, snapshots left out.
struct Measured {
  double read_bytes = 0, written_bytes = 0, sent_bytes = 0;
};
Measured measured_per_step(const Outcome& outcome);

// What Muon's matrices moved in a step beyond what AdamW would have moved, and what they move in
// other systems in fp32; of all ranks.
struct Beside {
  double ours = 0;
  std::array<libmuon::OthersTraffic, 3> others;
};
Beside beside_others(const Facts& facts, const Outcome& outcome);

// Where a step's time went, beside what was predicted; nothing where the two agree within a tenth.
std::string forecast_text(const libmuon::Forecast& forecast, const Typical& typical);

std::string plan_text(const Facts& facts);
std::string outcome_text(const Facts& facts, const Outcome& outcome);
constexpr std::string_view kResults = "{\n  \"origin\": ";  // what it begins with
std::string outcome_json(const Facts& facts, const Outcome& outcome);

}  // namespace ebb::gpt
