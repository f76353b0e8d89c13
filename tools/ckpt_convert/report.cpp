#include "tools/ckpt_convert/report.h"

#include <algorithm>

#include "ebb/formats/catalog/resume.h"
#include "ebb/formats/core/compose.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/registry.h"
#include "ebb/formats/safetensors/safetensors.h"
#include "tools/cli/beside.h"
#include "tools/cli/json.h"
#include "tools/cli/text.h"

namespace ebb::tools::convert {

namespace {

// The first is known before anything was read, the second when everything is written.
std::string planned_bytes(const Prepared& prepared) {
  return bytes_text(prepared.bytes()) +
         (prepared.conversion.plan.packing ? " before compression" : "");
}

std::string written_bytes(const libswap::WriteReport& report, const Prepared& prepared) {
  std::string text = bytes_text(report.bytes);
  if (prepared.conversion.plan.packing) text += " out of " + bytes_text(report.plain_bytes);
  return text;
}

// What the reading back has shown, and what it cannot have shown.
std::string verified_text(const Prepared& prepared, const Outcome& outcome) {
  const formats::Conversion& conversion = prepared.conversion;
  const std::size_t derived = conversion.plan.derived.size();
  const std::size_t otherwise = outcome.rounded_otherwise.size();
  std::string out;
  if (derived > otherwise)
    out += "  " + plural(derived - otherwise, "tensor") +
           " not stored: readers round the master weights, with the same result\n";
  for (const std::string& change : conversion.changes) out += "  " + change + "\n";
  for (const std::string& note : conversion.plan.notes) out += "  " + note + "\n";
  for (const std::string& dropped : conversion.plan.dropped) out += "  dropped " + dropped + "\n";
  for (const std::string& line : outcome.rounded_otherwise) out += "  dropped " + line + "\n";
  return out;
}

// What the source may have had that the result cannot.
std::string beside_text(const Prepared& prepared) {
  std::string out;
  for (const std::string& line : lines_of_missed(prepared.source->catalog()))
    out += "  not read: " + line + "\n";
  const std::string job = line_of_job(prepared.source->catalog());
  const bool weights_alone = formats::weights_only({prepared.conversion.content->catalog()});
  if (!job.empty() && !weights_alone) out += "  not copied: " + job + "\n";
  const auto& notes = prepared.source->catalog().notes;
  if (std::ranges::find(notes, formats::kLastShardUnseen) != notes.end())
    out += compose("  of the source: {}\n", formats::kLastShardUnseen);
  return out;
}

// For directories that are called like a file.
std::string folder_note(const Request& request, const Prepared& prepared) {
  const EmitPlan& plan = prepared.conversion.plan;
  const bool like_a_file = std::ranges::any_of(
      formats::registered_formats(),
      [&](const formats::Format* format) { return format->is_called_so(request.destination); });
  if (!like_a_file || plan.files.empty() || becomes(request, plan) == libswap::Becomes::file)
    return {};
  return compose("  {} is a directory; what it holds begins with {}\n",
                 printable(request.destination), prepared.conversion.plan.files.front().name);
}

}  // namespace

std::string plan_text(const Request& request, const Prepared& prepared) {
  const formats::Conversion& conversion = prepared.conversion;
  std::string out =
      compose("would write {}: {} for {}, {}, {}, {}\n", printable(request.destination),
              request.format->name(), plural(request.world, "rank"),
              plural(conversion.content->catalog().tensors.size(), "tensor"),
              plural(prepared.files(), "file"), planned_bytes(prepared));
  Table table({{"file"}, {"rank", Align::right}, {"bytes", Align::right}});
  constexpr std::size_t kShown = 16;
  for (const auto* files : {&conversion.plan.files, &conversion.plan.commit_files})
    for (const OutputFile& file : *files)
      if (table.rows() < kShown)
        table.add({file.name, std::to_string(index_of(file.writer)), bytes_text(file.size)});
  out += table.text();
  if (prepared.files() > kShown)
    out += "  ... " + count_text(prepared.files() - kShown) + " more files\n";
  out += beside_text(prepared);
  if (!prepared.replaces.empty()) out += "  replaces " + prepared.replaces + "\n";
  for (const std::string& note : conversion.plan.notes) out += "  " + note + "\n";
  for (const std::string& change : conversion.changes) out += "  " + change + "\n";
  for (const std::string& dropped : conversion.plan.dropped) out += "  drops " + dropped + "\n";
  return out;
}

std::string done_text(const Request& request, const Prepared& prepared, const Outcome& outcome) {
  const libswap::WriteReport& report = outcome.report;
  const std::size_t tensors = prepared.conversion.content->catalog().tensors.size();
  const std::size_t lost =
      prepared.conversion.plan.omitted.size() + outcome.rounded_otherwise.size();
  const double rate =
      static_cast<double>(report.plain_bytes) / std::max(report.seconds, 1e-9) / 1e6;
  return compose("{}: {} for {}, {}, {}, {} in {} s{}, verified bit for bit\n{}{}{}{}",
                 printable(request.destination), request.format->name(),
                 plural(request.world, "rank"), plural(tensors - lost, "tensor"),
                 plural(report.files, "file"), written_bytes(report, prepared),
                 decimal(report.seconds, 2),
                 (rate >= 1 ? compose(" ({} MB/s)", decimal(rate, 0)) : ""),
                 folder_note(request, prepared), beside_text(prepared),
                 (prepared.replaces.empty() ? "" : "  replaced " + prepared.replaces + "\n"),
                 verified_text(prepared, outcome));
}

std::string report_json(const Request& request, const Prepared& prepared, const Beyond& beyond) {
  const Outcome* outcome = beyond.outcome;
  const formats::Conversion& conversion = prepared.conversion;
  JsonWriter json;
  json.open_object().put("schema", "ckpt.convert/1").put("dry_run", outcome == nullptr);
  json.put("source", request.source).put("destination", request.destination);
  json.put("format", request.format->name()).put("world", request.world);
  json.put("partition", formats::name_of(conversion.policy));
  json.put("tensors", conversion.content->catalog().tensors.size()).key("files").open_list();
  for (const auto* files : {&conversion.plan.files, &conversion.plan.commit_files})
    for (const OutputFile& file : *files) {
      json.open_object().put("name", file.name).put("rank", file.writer);
      json.put("bytes", file.size).close_object();
    }
  json.close_list().put("changes", conversion.changes).put("bytes", prepared.bytes());
  if (conversion.plan.packing) {
    json.put("compression", compose("zstd:{}", request.compression->level));
    if (outcome != nullptr) json.put("compressed_bytes", outcome->report.bytes);
  }
  std::vector<std::string> dropped = conversion.plan.dropped;
  if (outcome != nullptr)
    std::ranges::copy(outcome->rounded_otherwise, std::back_inserter(dropped));
  json.put("dropped", dropped);
  write_beside(json, prepared.source->catalog());
  if (beyond.picture != nullptr) write_transfers(json, *beyond.picture);
  if (outcome != nullptr) {
    json.key("seconds").raw(std::to_string(outcome->report.seconds));
    json.put("resumed_bytes", outcome->report.bytes_found).put("verified", true);
  }
  json.close_object();
  return json.take();
}

}  // namespace ebb::tools::convert
