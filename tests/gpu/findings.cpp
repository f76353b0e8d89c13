#include "tests/gpu/findings.h"

#include <algorithm>
#include <fstream>
#include <optional>
#include <sstream>

#include "ebb/formats/json/json_reader.h"
#include "tests/gpu/goals.h"
#include "tools/cli/json.h"
#include "tools/cli/text.h"

namespace ebb::gpu {
namespace {

namespace json = formats::json;
using formats::Code;
using formats::compose;
using formats::Error;
using tools::Align;
using tools::decimal;

std::uint64_t nanoseconds(double seconds) { return static_cast<std::uint64_t>(1e9 * seconds); }
std::uint64_t whole(double number) { return static_cast<std::uint64_t>(number); }
std::string ms(double seconds) { return decimal(1e3 * seconds, 3); }
std::string gigabytes(std::uint64_t bytes) { return decimal(static_cast<double>(bytes) / 1e9, 2); }

// Of a whole model by whoever has all that is in its layer.
std::optional<Orthogonalized> model_by(const Findings& findings, const std::string& by,
                                       const Model& model) {
  Orthogonalized sum{by, model.text()};
  const auto layers = static_cast<double>(model.layers);
  for (const Batch& batch : model.layer()) {
    const Orthogonalized* const one = findings.find(by, batch.text());
    if (one == nullptr) return std::nullopt;
    sum.seconds += layers * one->seconds;
    sum.flops += layers * one->flops;
  }
  return sum;
}

std::string moved_table(const Findings& findings) {
  tools::Table table({{"moved"}, {"ms", Align::right}, {"GB/s", Align::right}});
  for (const Moved& one : findings.moved)
    table.add({one.what, ms(one.seconds), decimal(one.rate() / 1e9, 0)});
  return table.text();
}

std::string newton_schulz_table(const Findings& findings) {
  tools::Table table(
      {{"Newton-Schulz"}, {"by"}, {"ms", Align::right}, {"TFLOP/s, as standard", Align::right}});
  for (const Orthogonalized& one : findings.orthogonalized)
    table.add({one.what, one.by, ms(one.seconds), decimal(one.flops / one.seconds / 1e12, 1)});
  return table.text();
}

std::string steps_table(const Findings& findings) {
  tools::Table table({{"step, state on"},
                      {"ms", Align::right},
                      {"begin_step, ms", Align::right},
                      {"caller's CPU, ms", Align::right},
                      {"GB read", Align::right},
                      {"GB written", Align::right},
                      {"Newton-Schulz alone, ms", Align::right},
                      {"moving alone, ms", Align::right}});
  for (const Stepped& one : findings.steps)
    table.add({one.home, ms(one.seconds), ms(one.begin_s), ms(one.caller_cpu),
               gigabytes(one.read_bytes), gigabytes(one.written_bytes), ms(one.compute_s),
               ms(one.io_s)});
  return table.text();
}

void put_step(tools::JsonWriter& json, const Stepped& one) {
  json.key(one.home).open_object();
  json.put("nanoseconds", nanoseconds(one.seconds));
  json.put("begin_nanoseconds", nanoseconds(one.begin_s));
  json.put("caller_cpu_nanoseconds", nanoseconds(one.caller_cpu));
  json.put("matrices", one.matrices).put("state_bytes", one.state_bytes);
  json.put("read_bytes", one.read_bytes).put("written_bytes", one.written_bytes);
  json.put("planned_read_bytes", one.planned_read);
  json.put("planned_written_bytes", one.planned_written);
  json.put("newton_schulz_alone_nanoseconds", nanoseconds(one.compute_s));
  json.put("moving_alone_nanoseconds", nanoseconds(one.io_s));
  json.put("moving_alone_note", one.io_note);
  json.put("weights_crc32c", one.weights).close_object();
}

void put_goal(tools::JsonWriter& json, const Judged& one) {
  const auto number = [&](const char* name, const std::optional<double>& value) {
    json.key(name).raw(value ? tools::significant(*value, 6) : "null");
  };
  json.key(one.what).open_object();
  number("found", one.found);
  number("goal", one.goal);
  json.put("met", one.verdict() == Verdict::ok).put("why_not_measured", one.why);
  json.close_object();
}

}  // namespace

double standard_flops(const Batch& batch) {
  const auto m = static_cast<double>(std::min(batch.rows, batch.cols));
  const auto n = static_cast<double>(std::max(batch.rows, batch.cols));
  return 5 * static_cast<double>(batch.count) * (4 * m * m * n + 2 * m * m * m);
}

const Moved* Findings::find_moved(std::string_view what) const {
  const auto found = std::ranges::find(moved, what, &Moved::what);
  return found == moved.end() ? nullptr : &*found;
}

const Orthogonalized* Findings::find(std::string_view by, std::string_view what) const {
  for (const Orthogonalized& one : orthogonalized)
    if (one.by == by && one.what == what) return &one;
  return nullptr;
}

const Orthogonalized* Findings::best_of_ours(std::string_view what) const {
  const Orthogonalized* best = nullptr;
  for (const Orthogonalized& one : orthogonalized)
    if (one.by.starts_with("ebb ") && one.what == what &&
        (best == nullptr || one.seconds < best->seconds))
      best = &one;
  return best;
}

Result<> read_torch(const std::string& file, const Scale& scale, Findings& findings) {
  std::stringstream text;
  text << std::ifstream(file).rdbuf();
  const std::string document = text.str();
  json::Reader reader({file, 0, "torch's figures"}, document);
  const std::vector<Batch> batches = scale.batches();
  const auto figures = [&](const std::string& by, json::Value times) {
    return reader.fields(times, by, [&](std::string_view what, json::Value time) -> Result<> {
      const auto batch = std::ranges::find(batches, what, &Batch::text);
      if (batch == batches.end()) return reader.at(time, compose("nobody asked for {}", what));
      EBB_TRY_ASSIGN(const std::uint64_t taken, reader.whole(time, what));
      findings.orthogonalized.push_back(
          {by, std::string(what), static_cast<double>(taken) / 1e9, standard_flops(*batch)});
      return {};
    });
  };
  return reader.read([&](std::string_view key, json::Value value) -> Result<> {
    return reader.fields(value, key, [&](std::string_view by, json::Value item) -> Result<> {
      if (key == "newton_schulz_nanoseconds") return figures(std::string(by), item);
      EBB_TRY_ASSIGN(findings.absent[std::string(by)], reader.string(item, by));
      return {};
    });
  });
}

void add_models(const Scale& scale, Findings& findings) {
  std::vector<std::string> everybody;
  for (const Orthogonalized& one : findings.orthogonalized)
    if (std::ranges::find(everybody, one.by) == everybody.end()) everybody.push_back(one.by);
  for (const std::string& by : everybody)
    for (const Model& model : {scale.of_7b, scale.stepped})
      if (auto all = model_by(findings, by, model))
        findings.orthogonalized.push_back(*std::move(all));
}

std::string tables_of(const Findings& findings) {
  return compose("{}, {}\n\n{}\n{}\n{}  disk: {}\n", findings.device, findings.fingerprint,
                 moved_table(findings), newton_schulz_table(findings), steps_table(findings),
                 findings.disk);
}

std::string json_of(const Findings& findings, const std::vector<Judged>& goals) {
  tools::JsonWriter json;
  json.open_object().put("device", findings.device).put("fingerprint", findings.fingerprint);
  json.put("disk", findings.disk).key("moved").open_object();
  for (const Moved& one : findings.moved)
    json.key(one.what)
        .open_object()
        .put("nanoseconds", nanoseconds(one.seconds))
        .put("bytes", whole(one.bytes))
        .close_object();
  json.close_object().key("newton_schulz").open_object();
  for (const Orthogonalized& one : findings.orthogonalized)
    json.key(one.by + ": " + one.what)
        .open_object()
        .put("nanoseconds", nanoseconds(one.seconds))
        .put("standard_flops", whole(one.flops))
        .close_object();
  json.close_object().key("steps").open_object();
  for (const Stepped& one : findings.steps) put_step(json, one);
  json.close_object().key("goals").open_object();
  for (const Judged& one : goals) put_goal(json, one);
  return json.close_object().close_object().take();
}

}  // namespace ebb::gpu
