#include "tools/swap_bench/report.h"

#include "ebb/formats/core/json_text.h"
#include "tools/cli/json.h"
#include "tools/cli/text.h"

namespace ebb::tools::swap_bench {
namespace {

using libswap::ProbeFile;

std::string rate_text(double bytes_per_s) { return decimal(bytes_per_s / 1e9, 2); }

bool is_direct(const Sweep& sweep, const Row& row) {
  return sweep.info.direct && row.setting.caching == ProbeFile::Caching::direct;
}

std::string table_text(const Sweep& sweep) {
  Table table({{"block", Align::right},
               {"depth", Align::right},
               {"read GB/s", Align::right},
               {"write GB/s", Align::right},
               {"both GB/s", Align::right},
               {""}});
  const auto add = [&](const Row& row, std::string what) {
    table.add({bytes_text(row.setting.operation_bytes), std::to_string(row.setting.depth),
               rate_text(row.rates.read), rate_text(row.rates.write), rate_text(row.rates.mixed),
               std::move(what)});
  };
  for (const Row& row : sweep.rows) add(row, "");
  if (sweep.info.direct) add(sweep.page_cache, "without O_DIRECT");
  add(sweep.small_pages, "without huge pages");
  return table.text();
}

// "2.1 times as fast as ...": what a choice is worth.
std::string worth(double with, double without, std::string_view without_what) {
  return compose("{} times as fast as {}", decimal(with / without, 2), without_what);
}

std::string advice_text(const Sweep& sweep, const Row& best) {
  Table table({{"use"}, {""}, {""}});
  table.add({"chunk_bytes", bytes_text(best.setting.operation_bytes),
             "of IoQueue::Options; a tile is a multiple of it"});
  table.add({"read_bytes_in_flight", bytes_text(best.window()),
             compose("{} of them at a time, each way", best.setting.depth)});
  table.add({"write_bytes_in_flight", bytes_text(best.window()), ""});
  if (sweep.info.direct)
    table.add({"O_DIRECT", "yes",
               worth(sweep.usual.rates.mixed, sweep.page_cache.rates.mixed,
                     "through the page cache, and takes none of it")});
  else
    table.add({"O_DIRECT", "no", "its file system has none: the page cache's figures"});
  table.add({"huge pages", "yes",
             worth(sweep.usual.rates.mixed, sweep.small_pages.rates.mixed, "4 KiB pages")});
  return table.text();
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

JsonWriter& put_rates(JsonWriter& json, const Row& row, bool direct) {
  json.put("block_bytes", row.setting.operation_bytes).put("depth", row.setting.depth);
  json.put("direct", direct).put("huge_pages", row.setting.pages == libswap::Pages::huge);
  json.key("read_bytes_per_s").raw(decimal(row.rates.read, 0));
  json.key("write_bytes_per_s").raw(decimal(row.rates.write, 0));
  return json.key("mixed_bytes_per_s").raw(decimal(row.rates.mixed, 0));
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
  const Row best = best_of(sweep);
  std::string out =
      compose("{}: {} GB/s read, {} written, {} both at once ({}, a file of {})\n",
              printable(directory), rate_text(best.rates.read), rate_text(best.rates.write),
              rate_text(best.rates.mixed), sweep.backend, bytes_text(sweep.file_bytes));
  if (!sweep.note.empty()) out += "  note  " + sweep.note + "\n";
  if (sweep.info.in_memory)
    out += "  note  this directory is memory (tmpfs): a power loss takes all of it\n";
  out += "\n" + table_text(sweep) + "\n" + advice_text(sweep, best);
  if (step) out += "\n" + step_text(sweep, *step);
  return out;
}

std::string report_json(const std::string& directory, const Sweep& sweep,
                        const std::optional<Step>& step) {
  JsonWriter json;
  json.open_object().put("schema", "swap.bench/1").put("directory", directory);
  json.put("backend", sweep.backend).put("note", sweep.note);
  json.put("direct", sweep.info.direct).put("in_memory", sweep.info.in_memory);
  json.put("file_bytes", sweep.file_bytes).put("free_bytes", sweep.free_bytes);
  json.key("settings").open_list();
  std::vector<Row> rows = sweep.rows;
  rows.insert(rows.end(), {sweep.usual, sweep.page_cache, sweep.small_pages});
  for (const Row& row : rows)
    put_rates(json.open_object(), row, is_direct(sweep, row)).close_object();
  json.close_list();
  const Row best = best_of(sweep);
  json.key("use").open_object().put("chunk_bytes", best.setting.operation_bytes);
  json.put("read_bytes_in_flight", best.window()).put("write_bytes_in_flight", best.window());
  put_rates(json, best, is_direct(sweep, best)).close_object();
  put_step(json, step);
  json.close_object();
  return json.take();
}

}  // namespace ebb::tools::swap_bench
