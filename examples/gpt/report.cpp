#include "examples/gpt/report.h"

#include <algorithm>
#include <array>
#include <cstdio>

#include "examples/gpt/batches.h"
#include "tools/cli/json.h"
#include "tools/cli/text.h"

namespace ebb::gpt {
namespace {

using tools::bytes_text;

double median(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

std::string fixed(double value, int digits) {
  std::array<char, 64> text{};
  std::snprintf(text.data(), text.size(), "%.*f", digits, value);
  return text.data();
}

std::string milliseconds(double seconds) { return fixed(1e3 * seconds, 1) + " ms"; }

std::uint64_t steps_of(const Outcome& outcome) { return outcome.last_step - outcome.first_step; }

double tokens_per_second(const Facts& facts, const Outcome& outcome) {
  const double tokens =
      static_cast<double>(steps_of(outcome) * kBatch * facts.model.config.sequence);
  return outcome.seconds > 0 ? tokens / outcome.seconds : 0;
}

class FlatJson {  // one key a line, so that a script can grep it
 public:
  FlatJson& number(std::string_view key, double value) {
    std::array<char, 64> text{};
    std::snprintf(text.data(), text.size(), "%.17g", value);
    return raw(key, text.data());
  }
  FlatJson& count(std::string_view key, std::uint64_t value) {
    return raw(key, std::to_string(value));
  }
  FlatJson& numbers(std::string_view key, const std::vector<double>& values) {
    std::string all;
    for (const double value : values) {
      std::array<char, 64> text{};
      std::snprintf(text.data(), text.size(), "%s%.17g", all.empty() ? "" : ", ", value);
      all += text.data();
    }
    return raw(key, "[" + all + "]");
  }
  FlatJson& text(std::string_view key, std::string_view value) {
    return raw(key, tools::JsonWriter().text(value).take());
  }
  std::string take() { return "{\n" + body_ + "\n}\n"; }

 private:
  FlatJson& raw(std::string_view key, std::string value) {
    while (!value.empty() && value.back() == '\n') value.pop_back();
    if (!body_.empty()) body_ += ",\n";
    body_.append("  \"").append(key).append("\": ").append(value);
    return *this;
  }
  std::string body_;
};

}  // namespace

Typical typical_step(const Outcome& outcome) {
  std::vector<double> gradients, waited, engine, swept, exchange;
  for (const StepTimes& step : outcome.steps) {
    gradients.push_back(step.gradients_s);
    waited.push_back(step.waited_s);
    engine.push_back(step.engine_s);
    swept.push_back(step.swept_s);
    exchange.push_back(step.exchange_s);
  }
  return {median(gradients), median(waited), median(engine), median(swept), median(exchange)};
}

// The forecast has the cores for the optimizer alone, and ranks that never wait for one another.
std::string forecast_text(const libmuon::Forecast& forecast, const Typical& typical) {
  const double times = forecast.step_s > 0 ? typical.engine_s / forecast.step_s : 1;
  if (typical.engine_s == 0 || (times > 0.9 && times < 1.1)) return "";
  const double rest = std::max(0.0, typical.engine_s - typical.swept_s - typical.exchange_s);
  return compose(
      "that is {} times the predicted {}: sweeps took {} (predicted: {}), exchanges alone {} ({}), "
      "waits for the disk ({}) and for other ranks {}; the next forward runs on the same cores "
      "meanwhile, which the forecast leaves out\n",
      fixed(times, 1), milliseconds(forecast.step_s), milliseconds(typical.swept_s),
      milliseconds(forecast.compute_s), milliseconds(typical.exchange_s),
      milliseconds(forecast.exchange_s), milliseconds(forecast.disk_s), milliseconds(rest));
}

Measured measured_per_step(const Outcome& outcome) {
  const auto steps = static_cast<double>(std::max<std::uint64_t>(1, steps_of(outcome)));
  return {static_cast<double>(outcome.traffic.read_bytes) / steps,
          static_cast<double>(outcome.traffic.written_bytes) / steps,
          static_cast<double>(outcome.traffic.sent_bytes) / steps};
}

std::string plan_text(const Facts& facts) {
  const Predicted& plan = facts.predicted;
  std::string out = "text: " + facts.corpus.description + "\n";
  out += compose(
      "model: {} parameters; {} ranks; state {}, budget used {} ({} %), disk {}\n",
      tools::count_text(facts.model.elems), facts.settings.ranks, bytes_text(plan.state_bytes),
      bytes_text(plan.frame_bytes),
      fixed(100.0 * static_cast<double>(plan.frame_bytes) / static_cast<double>(plan.state_bytes),
            1),
      bytes_text(plan.disk_bytes));
  out += compose("predicted a step: read {}, written {}, sent {}", bytes_text(plan.step_read_bytes),
                 bytes_text(plan.step_written_bytes), bytes_text(plan.step_sent_bytes));
  if (facts.forecast)
    out += compose(", optimizer {} alone on these cores", milliseconds(facts.forecast->step_s));
  out += "\n";
  if (facts.predicted_create_s)
    out += compose("a new store: all {} are written before the first step, {} s on this disk\n",
                   bytes_text(plan.disk_bytes), fixed(*facts.predicted_create_s, 1));
  out += "predicted memory, at most:\n";
  tools::Table table({{"", tools::Align::right}, {"", tools::Align::left}});
  for (const auto& [what, bytes] : plan.memory) table.add({bytes_text(bytes), what});
  table.add({bytes_text(plan.memory_total()), "together"});
  return out + table.text();
}

Beside beside_others(const Facts& facts, const Outcome& outcome) {
  const bool is_muon = std::holds_alternative<libmuon::MuonSpec>(facts.settings.matrices);
  std::uint64_t matrices = 0;
  for (const Parameter& parameter : facts.model.parameters)
    if (parameter.optimizer == Optimizer::muon && is_muon) matrices += parameter.elems;
  const std::uint64_t ranks = facts.settings.ranks;
  // AdamW's: every new weight goes from its shard to all other ranks.
  const auto gathered = static_cast<double>(sizeof(float) * facts.model.elems * (ranks - 1));
  return {std::max(0.0, measured_per_step(outcome).sent_bytes - gathered),
          libmuon::traffic_of_others(matrices, facts.settings.ranks, sizeof(float))};
}

namespace {

// Nothing where there is nobody to send to.
std::string traffic_text(const Facts& facts, const Outcome& outcome) {
  if (facts.settings.ranks == 1) return "";
  const Beside beside = beside_others(facts, outcome);
  std::string out = compose("beyond AdamW on the same shards {} were sent a step",
                            bytes_text(static_cast<std::uint64_t>(beside.ours)));
  for (const libmuon::OthersTraffic& other : beside.others)
    out += compose("; {} would send {}, {}", other.system, bytes_text(other.bytes), other.formula);
  return out + "\n";
}

}  // namespace

// A command that is given again when everything is done, or that was stopped at once.
std::string nothing_done_text(const Facts& facts, const Outcome& outcome) {
  if (outcome.stopped) return "";
  const std::uint64_t more = outcome.last_step > 0 ? 2 * outcome.last_step : Settings().steps;
  return compose(
      "step {} of {} is reached, nothing was trained; --steps {} goes on\n"
      "held-out loss {} nats per byte; the store is {}\n",
      outcome.last_step, facts.settings.steps, more, fixed(outcome.held_out_loss, 4),
      outcome.store);
}

std::string outcome_text(const Facts& facts, const Outcome& outcome) {
  if (outcome.first_step == outcome.last_step) return nothing_done_text(facts, outcome);
  const Typical typical = typical_step(outcome);
  const Measured measured = measured_per_step(outcome);
  const auto bytes = [](double value) { return bytes_text(static_cast<std::uint64_t>(value)); };
  std::string out =
      compose("steps {} to {} in {} s, {} tokens/s\n", outcome.first_step, outcome.last_step,
              fixed(outcome.seconds, 1), fixed(tokens_per_second(facts, outcome), 0));
  out += compose("held-out loss {} nats a byte; bigram counts {}\n",
                 fixed(outcome.held_out_loss, 4), fixed(facts.bigram_loss, 4));
  out +=
      compose("measured a step: read {}, written {}, sent {}, optimizer {}; {} of {} wait for it\n",
              bytes(measured.read_bytes), bytes(measured.written_bytes), bytes(measured.sent_bytes),
              milliseconds(typical.engine_s), milliseconds(typical.waited_s),
              milliseconds(typical.step_s()));
  if (facts.forecast) out += forecast_text(*facts.forecast, typical);
  out += traffic_text(facts, outcome);
  if (outcome.timeline)
    out += compose("{} % of the I/O beside computing, {} % of a step waits for it{}\n",
                   fixed(100 * outcome.timeline->overlap(), 1),
                   fixed(100 * outcome.timeline->exposed_io(), 1),
                   facts.disk_bytes_per_s
                       ? compose(", {} of what the disk gives",
                                 fixed(outcome.timeline->share_of(*facts.disk_bytes_per_s), 3))
                       : std::string());
  out += compose("peak memory {} of {}\n", bytes_text(facts.peak_rss_bytes),
                 bytes_text(facts.predicted.memory_total()));
  out += compose("{} snapshots, longest stall {}; the store is {}\n", outcome.snapshots,
                 milliseconds(outcome.longest_snapshot_stall_s), outcome.store);
  if (outcome.snapshots_put_off > 0)
    out += compose(
        "{} snapshots put off while another process read the store; more slots avoid that\n",
        outcome.snapshots_put_off);
  if (outcome.exported && *outcome.exported)
    out += compose("exported step {} to {} behind training: {} in {} s\n",
                   (*outcome.exported)->step, (*outcome.exported)->directory.string(),
                   bytes_text((*outcome.exported)->bytes), fixed((*outcome.exported)->seconds, 2));
  return out;
}

std::string outcome_json(const Facts& facts, const Outcome& outcome) {
  const Typical typical = typical_step(outcome);
  const Measured measured = measured_per_step(outcome);
  const Predicted& plan = facts.predicted;
  FlatJson json;
  json.text("origin", outcome.origin).text("store", outcome.store);
  json.count("ranks", facts.settings.ranks).count("tile_bytes", facts.settings.tile_bytes);
  json.count("first_step", outcome.first_step).count("last_step", outcome.last_step);
  json.count("stopped", outcome.stopped ? 1 : 0).count("parameters", facts.model.elems);
  json.count("skipped_steps", outcome.skipped).count("sequences", outcome.state.next_sequence);
  json.count("loss_scale_bits", outcome.state.loss_scale.bits);
  json.numbers("losses", outcome.losses);
  json.number("first_loss", outcome.first_loss).number("train_loss", outcome.train_loss);
  json.number("held_out_loss", outcome.held_out_loss).number("bigram_loss", facts.bigram_loss);
  json.number("seconds", outcome.seconds);
  json.number("tokens_per_second", tokens_per_second(facts, outcome));
  json.number("step_s", typical.step_s()).number("gradients_s", typical.gradients_s);
  json.number("engine_s", typical.engine_s).number("waited_s", typical.waited_s);
  json.number("swept_s", typical.swept_s).number("exposed_exchange_s", typical.exchange_s);
  if (facts.forecast)
    json.number("predicted_engine_s", facts.forecast->step_s)
        .number("predicted_compute_s", facts.forecast->compute_s)
        .number("predicted_disk_s", facts.forecast->disk_s)
        .number("predicted_exchange_s", facts.forecast->exchange_s);
  json.count("state_bytes", plan.state_bytes).count("frame_bytes", plan.frame_bytes);
  json.count("disk_bytes", plan.disk_bytes);
  json.count("predicted_read_bytes", plan.step_read_bytes)
      .number("read_bytes", measured.read_bytes);
  json.count("predicted_written_bytes", plan.step_written_bytes)
      .number("written_bytes", measured.written_bytes);
  json.count("predicted_sent_bytes", plan.step_sent_bytes)
      .number("sent_bytes", measured.sent_bytes);
  const Beside beside = beside_others(facts, outcome);
  json.number("sent_beyond_adamw_bytes", beside.ours)
      .count("deepspeed_zero12_bytes", beside.others[0].bytes)
      .count("deepspeed_zero3_bytes", beside.others[1].bytes)
      .count("megatron_fsdp_bytes", beside.others[2].bytes);
  json.count("predicted_memory_bytes", plan.memory_total());
  json.count("peak_rss_bytes", facts.peak_rss_bytes);
  json.count("snapshots", outcome.snapshots).count("generation", outcome.generation);
  json.count("snapshots_put_off", outcome.snapshots_put_off);
  json.number("snapshot_stall_s", outcome.longest_snapshot_stall_s);
  if (outcome.timeline) {
    json.number("overlap", outcome.timeline->overlap());
    json.number("exposed_io", outcome.timeline->exposed_io());
    if (facts.disk_bytes_per_s)
      json.number("share_of_limit", outcome.timeline->share_of(*facts.disk_bytes_per_s));
  }
  if (outcome.exported && *outcome.exported) {
    json.count("export_step", (*outcome.exported)->step);
    json.count("export_bytes", (*outcome.exported)->bytes);
    json.number("export_s", (*outcome.exported)->seconds);
  }
  return json.take();
}

}  // namespace ebb::gpt
