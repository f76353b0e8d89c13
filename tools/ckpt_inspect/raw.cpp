#include "tools/ckpt_inspect/raw.h"

#include <algorithm>
#include <map>

#include "ebb/formats/conversion/glob.h"
#include "ebb/formats/describe.h"
#include "tools/ckpt_inspect/modes.h"
#include "tools/cli/text.h"

namespace ebb::tools::inspect {

namespace {

constexpr std::uint64_t kTextNodes = 400;     // of one file, unless --limit says otherwise
constexpr std::uint64_t kJsonNodes = 100000;  // of one file
constexpr std::size_t kMaxFiles = 10000;

void append_text(std::string& out, const RawNode& node, std::size_t depth) {
  std::string at = node.at && depth != 0 ? count_text(*node.at) : std::string();
  if (depth != 0) at.insert(0, at.size() < 12 ? 12 - at.size() : 0, ' ');
  out += compose("{}{}{}\n", at, std::string(depth == 0 ? 0 : 2 * depth, ' '), node.text);
  for (const RawNode& child : node.children) append_text(out, child, depth + 1);
  if (node.more) out += std::string(14 + 2 * depth, ' ') + "... more: --limit N, or --json\n";
}

void write_node(JsonWriter& json, const RawNode& node) {
  json.open_object().put("at", node.at).put("text", node.text).put("more", node.more);
  json.key("children").open_list();
  for (const RawNode& child : node.children) write_node(json, child);
  json.close_list().close_object();
}

// Payload files that hold several archives, by file name: where each begins only the catalog knows.
std::map<std::string, std::vector<RawItem>> items_of(const Checkpoint* checkpoint) {
  std::map<std::string, std::vector<RawItem>> out;
  if (checkpoint == nullptr || checkpoint->catalog().format != "dcp") return out;
  const Catalog& catalog = checkpoint->catalog();
  for (const TensorEntry& tensor : catalog.tensors)
    for (const Chunk& chunk : tensor.chunks)
      out[catalog.files[chunk.file].name].push_back(
          {chunk.offset, chunk.length, label_of(tensor) + " " + formats::to_string(chunk.box)});
  for (auto& [name, items] : out) std::ranges::sort(items, {}, &RawItem::offset);
  return out;
}

bool wanted(const std::vector<std::string>& globs, const std::string& name) {
  return globs.empty() || std::ranges::any_of(globs, [&](const std::string& glob) {
           return formats::glob_match(glob, name) ||
                  formats::glob_match(glob, name.substr(name.rfind('/') + 1));
         });
}

}  // namespace

Result<Exit> show_raw(Console& console, const RawRequest& request) {
  const auto described = formats::describe(request.tree);
  auto items = items_of(described ? described->get() : nullptr);
  const std::uint64_t nodes =
      request.limit.value_or(request.output == Output::json ? kJsonNodes : kTextNodes);
  JsonWriter json;
  open_document(json, "raw");
  json.put("path", request.path).key("files").open_list();
  std::size_t shown = 0;
  for (const auto& entry : request.tree->entries()) {
    if (!wanted(request.files, entry.name)) continue;
    if (++shown > kMaxFiles) break;
    EBB_TRY_ASSIGN(const auto source, request.tree->open(entry.name));
    RawBudget budget(nodes);
    const RawNode node = raw_file(source, items[entry.name], budget);
    if (request.output == Output::json) {
      write_node(json, node);
    } else {
      std::string text;
      append_text(text, node, 0);
      console.print(text);
    }
  }
  if (shown == 0)
    return Error{Code::usage,
                 compose("none of the {} of {} matches",
                         plural(request.tree->entries().size(), "file"), request.path),
                 "with --raw, -k picks files by name"};
  json.close_list().close_object();
  if (request.output == Output::json) console.print(json.take());
  return Exit::success;
}

}  // namespace ebb::tools::inspect
