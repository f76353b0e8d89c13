#include "tools/swap_bench/report.h"

#include <algorithm>

#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/units.h"
#include "tools/cli/json.h"
#include "tools/cli/text.h"

namespace ebb::tools::swap_bench {
namespace {

using libswap::ProbeFile;

std::string rate_text(double bytes_per_s) { return decimal(bytes_per_s / 1e9, 2); }

bool is_direct(const Sweep& sweep, const Row& row) {
  return sweep.info.direct && row.setting.caching == ProbeFile::Caching::direct;
}

std::string range_text(const Rate& rate) {
  return rate_text(rate.least) + "-" + rate_text(rate.most);
}

// "4.0 MiB x 8"
std::string name_of(const Row& row) {
  return compose("{} x {}", bytes_text(row.setting.operation_bytes), row.setting.depth);
}

// As flags take it, exactly: "256KiB".
std::string flag_text(std::uint64_t bytes) {
  return bytes % formats::MiB == 0 ? compose("{}MiB", bytes / formats::MiB)
                                   : compose("{}KiB", bytes / formats::KiB);
}

std::string table_text(const Sweep& sweep) {
  Table table({{"block", Align::right},
               {"depth", Align::right},
               {"read GB/s", Align::right},
               {"write GB/s", Align::right},
               {"both GB/s", Align::right},
               {"from-to", Align::right},
               {""}});
  const auto add = [&](const Row& row, std::string what) {
    table.add({bytes_text(row.setting.operation_bytes), std::to_string(row.setting.depth),
               rate_text(row.rates.read.median), rate_text(row.rates.write.median),
               rate_text(row.rates.mixed.median), range_text(row.rates.mixed), std::move(what)});
  };
  for (const Row& row : sweep.rows) add(row, row.usual() ? "the default" : "");
  if (sweep.info.direct) add(sweep.page_cache, "without O_DIRECT, once");
  add(sweep.small_pages, "without huge pages");
  return table.text();
}

}  // namespace

std::string verdict_text(const Sweep& sweep, const Advice& advice) {
  const Row& usual = sweep.usual();
  const double ahead = advice.fastest.rates.mixed.median / usual.rates.mixed.median - 1;
  switch (advice.verdict) {
    case Verdict::in_memory:
      return "no advice: this directory is memory (tmpfs), no disk: state that is paged to it "
             "takes "
             "as much memory as it saves\n";
    case Verdict::too_few_rounds:
      return compose(
          "no advice: {} of all settings in {} s say nothing of the spread; the default "
          "stays (--seconds {} takes more)\n",
          plural(sweep.rounds, "round"), decimal(sweep.seconds, 1),
          decimal(std::max(60.0, 10 * sweep.seconds), 0));
    case Verdict::other_wins:
      return compose(
          "{} beats the default, {}: {} GB/s of both in its slowest round, {} in the "
          "default's fastest\n",
          name_of(advice.use), name_of(usual), rate_text(advice.use.rates.mixed.least),
          rate_text(usual.rates.mixed.most));
    case Verdict::no_clear_winner:
      break;
  }
  if (advice.fastest.usual()) return compose("no setting beats the default, {}\n", name_of(usual));
  return compose(
      "no clear winner: {} leads the default, {}, by {} % of the median, within the "
      "spread ({} and {} GB/s) or less than a tenth; the default stays\n",
      name_of(advice.fastest), name_of(usual), decimal(100 * ahead, 0),
      range_text(advice.fastest.rates.mixed), range_text(usual.rates.mixed));
}

namespace {

// Each of them a flag of gpt-train and a field of the library.
std::string settings_text(const Row& use) {
  const std::string block = flag_text(use.setting.operation_bytes),
                    window = flag_text(use.window());
  Table table({{"use"}, {"gpt-train"}, {"field"}});
  table.add({"operations of " + block, "--io-block " + block, "IoQueue::Options::chunk_bytes"});
  table.add({window + " in flight each way", "--io-in-flight " + window,
             "IoQueue::Options::read_bytes_in_flight, write_bytes_in_flight"});
  table.add(
      {"tiles of " + block + ", or a multiple", "--tile " + block, "EngineConfig::tile_bytes"});
  return table.text();
}

// "2.1 times as fast as ...": what a choice is worth.
std::string worth(double with, double without, std::string_view without_what) {
  return compose("{} times as fast as {}", decimal(with / without, 2), without_what);
}

std::string advice_text(const Sweep& sweep, const Advice& advice) {
  std::string out = verdict_text(sweep, advice);
  if (advice.verdict == Verdict::in_memory) return out;
  const double usual = sweep.usual().rates.mixed.median;
  out += "\n" + settings_text(advice.use) + "\n";
  out += sweep.info.direct
             ? compose("O_DIRECT is used unasked: {}, and takes none of it\n",
                       worth(usual, sweep.page_cache.rates.mixed.median, "the page cache"))
             : "its file system has no O_DIRECT: the figures are the page cache's\n";
  return out + compose("huge pages are used unasked: {}\n",
                       worth(usual, sweep.small_pages.rates.mixed.median, "pages of 4 KiB"));
}

std::string step_text(const Sweep& sweep, const Step& step) {
  const State& state = step.state;
  std::string out;
  if (state.muon_elems + state.adam_elems > 0)
    out +=
        compose("the model has {} elements in matrices (Muon) and {} in other parameters (AdamW)\n",
                count_text(state.muon_elems), count_text(state.adam_elems));
  out += compose("a step on {} of state", bytes_text(state.bytes));
  if (state.resident_bytes > 0) out += compose(", {} resident,", bytes_text(state.resident_bytes));
  out += compose(" reads {} and writes as much: {} s here, where computing takes no longer\n",
                 bytes_text(step.read_bytes), decimal(step.seconds, 2));
  out += compose("a store with 3 slots takes {} of disk, written once: {} s; {} are free{}\n",
                 bytes_text(step.store_bytes), decimal(step.create_seconds, 1),
                 bytes_text(sweep.free_bytes),
                 step.store_bytes > sweep.free_bytes ? ", too little" : "");
  return out;
}

std::string_view word_of(Verdict verdict) {
  switch (verdict) {
    case Verdict::other_wins:
      return "other_wins";
    case Verdict::no_clear_winner:
      return "no_clear_winner";
    case Verdict::too_few_rounds:
      return "too_few_rounds";
    case Verdict::in_memory:
      break;
  }
  return "in_memory";
}

JsonWriter& put_rates(JsonWriter& json, const Row& row, bool direct) {
  json.put("block_bytes", row.setting.operation_bytes).put("depth", row.setting.depth);
  json.put("direct", direct).put("huge_pages", row.setting.pages == libswap::Pages::huge);
  json.key("read_bytes_per_s").raw(decimal(row.rates.read.median, 0));
  json.key("write_bytes_per_s").raw(decimal(row.rates.write.median, 0));
  json.key("mixed_bytes_per_s").raw(decimal(row.rates.mixed.median, 0));
  json.key("mixed_least_bytes_per_s").raw(decimal(row.rates.mixed.least, 0));
  return json.key("mixed_most_bytes_per_s").raw(decimal(row.rates.mixed.most, 0));
}

void put_step(JsonWriter& json, const std::optional<Step>& step) {
  json.key("step");
  if (!step) {
    json.null();
    return;
  }
  json.open_object().put("state_bytes", step->state.bytes);
  json.put("resident_bytes", step->state.resident_bytes);
  json.put("muon_elems", step->state.muon_elems).put("adam_elems", step->state.adam_elems);
  json.put("read_bytes", step->read_bytes).put("written_bytes", step->written_bytes);
  json.key("seconds").raw(decimal(step->seconds, 6));
  json.put("store_bytes", step->store_bytes);
  json.key("create_seconds").raw(decimal(step->create_seconds, 6));
  json.close_object();
}

}  // namespace

std::string report_text(const std::string& directory, const Sweep& sweep,
                        const std::optional<Step>& step) {
  const Advice advice = advice_of(sweep);
  const Rates& rates = advice.use.rates;
  std::string out = compose(
      "{}: {} GB/s read, {} written, {} both at once (with {}: {} in {}; {}, a file of {}, {} s)\n",
      printable(directory), rate_text(rates.read.median), rate_text(rates.write.median),
      rate_text(rates.mixed.median), name_of(advice.use), range_text(rates.mixed),
      plural(sweep.rounds, "round"), sweep.backend, bytes_text(sweep.file_bytes),
      decimal(sweep.seconds, 1));
  if (!sweep.note.empty()) out += "  note  " + sweep.note + "\n";
  if (sweep.info.in_memory)
    out += "  note  this directory is memory (tmpfs), no disk: a power loss takes all of it\n";
  out += "\n" + table_text(sweep) + "\n" + advice_text(sweep, advice);
  if (step) out += "\n" + step_text(sweep, *step);
  return out;
}

std::string report_json(const std::string& directory, const Sweep& sweep,
                        const std::optional<Step>& step,
                        const std::optional<PictureWritten>& picture) {
  JsonWriter json;
  json.open_object().put("schema", "swap.bench/1").put("directory", directory);
  json.put("backend", sweep.backend).put("note", sweep.note);
  json.put("direct", sweep.info.direct).put("in_memory", sweep.info.in_memory);
  json.put("file_bytes", sweep.file_bytes).put("free_bytes", sweep.free_bytes);
  json.put("rounds", sweep.rounds);
  json.key("seconds").raw(decimal(sweep.seconds, 1));
  json.key("settings").open_list();
  std::vector<Row> rows = sweep.rows;
  rows.insert(rows.end(), {sweep.page_cache, sweep.small_pages});
  for (const Row& row : rows)
    put_rates(json.open_object(), row, is_direct(sweep, row)).close_object();
  json.close_list();
  const Advice advice = advice_of(sweep);
  const Row& best = advice.use;
  json.put("verdict", word_of(advice.verdict));
  json.key("use").open_object().put("chunk_bytes", best.setting.operation_bytes);
  json.put("read_bytes_in_flight", best.window()).put("write_bytes_in_flight", best.window());
  put_rates(json, best, is_direct(sweep, best)).close_object();
  put_step(json, step);
  if (picture) {
    json.key("picture").open_object().put("file", picture->file).put("bytes", picture->bytes);
    json.close_object();
  }
  json.close_object();
  return json.take();
}

}  // namespace ebb::tools::swap_bench
