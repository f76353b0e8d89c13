// The list modes: --tensors, --shards, --groups.
#include <algorithm>
#include <optional>

#include "ebb/formats/conversion/glob.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/libswap/read/digest.h"
#include "tools/ckpt_inspect/modes.h"
#include "tools/cli/text.h"

namespace ebb::tools::inspect {

namespace {

constexpr std::size_t kEverything = ~std::size_t{0};

std::string more_line(std::size_t shown, std::size_t total) {
  if (shown >= total) return {};
  return compose("  ... {} more (--limit {} shows all)\n", count_text(total - shown), total);
}

Result<std::optional<std::string>> digest_of(const View& view, const TensorEntry& tensor,
                                             Digest digest) {
  if (digest == Digest::none) return std::optional<std::string>();
  EBB_TRY_ASSIGN(std::string sha256, libswap::sha256_of(view.checkpoint, tensor));
  return std::optional<std::string>(std::move(sha256));
}

// Of a part: what the whole is.
void write_whole(JsonWriter& json, const TensorEntry& tensor) {
  if (tensor.part_of == nullptr) return;
  const auto& [whole, part] = *tensor.part_of;
  Value settings = Value::of_dict();
  for (const auto& [name, value] : whole->settings) settings.add(name, value);
  json.key("part_of").open_object();
  json.put("class", whole->type).put("part", part).put("dtype", name_of(whole->dtype));
  json.put("shape", whole->shape);
  json.key("settings").raw(formats::to_json(settings)).close_object();
}

// The document of tests/fixtures/README.md: comparable across formats.
Result<Exit> tensors_json(Console& console, const View& view, Digest digest) {
  JsonWriter json;
  json.open_object().key("tensors").open_list();
  for (std::size_t i = 0; i < shown_of(view, view.tensors.size(), kEverything); ++i) {
    const TensorEntry& tensor = *view.tensors[i];
    EBB_TRY_ASSIGN(const auto sha256, digest_of(view, tensor, digest));
    write_identity(json, tensor);
    write_whole(json, tensor);
    if (sha256) json.put("sha256", *sha256);
    json.close_object();
  }
  json.close_list().key("values").open_object();
  for (const ValueEntry& value : view.catalog().values)
    json.key(value.key).raw(formats::to_json(value.value));
  json.close_object();
  write_unread(json, view);
  json.close_object();
  console.print(json.take());
  return Exit::success;
}

// What follows the table of those that are read.
std::string unread_list(const View& view) {
  std::string out;
  for (const formats::UnreadEntry* unread : unread_of(view))
    out += compose("  not read: {} ({}): {}\n", printable(unread->name), printable(unread->state),
                   printable(unread->what));
  return out;
}

void shard_json(JsonWriter& json, const View& view, const TensorEntry& tensor, const Chunk& chunk) {
  json.open_object().put("name", tensor.name).put("state", tensor.state);
  json.put("rank", chunk.holder);
  json.put("file", view.catalog().files.at(chunk.file).name);
  json.put("offset", chunk.offset).put("length", chunk.length).key("box").open_object();
  json.put("offset", chunk.box.offset).put("extent", chunk.box.extent);
  json.close_object().close_object();
}

}  // namespace

Result<Exit> show_tensors(Console& console, const View& view, Digest digest) {
  if (view.output == Output::json) return tensors_json(console, view, digest);
  std::vector<Column> columns = {{"tensor"},
                                 {"state"},
                                 {"dtype"},
                                 {"shape"},
                                 {"bytes", Align::right},
                                 {"chunks", Align::right}};
  if (digest == Digest::sha256) columns.push_back({"sha256"});
  Table table(std::move(columns));
  const std::size_t shown = shown_of(view, view.tensors.size(), kEverything);
  for (std::size_t i = 0; i < shown; ++i) {
    const TensorEntry& tensor = *view.tensors[i];
    EBB_TRY_ASSIGN(auto sha256, digest_of(view, tensor, digest));
    std::vector<std::string> cells = identity_cells(tensor);
    cells.push_back(bytes_text(bytes_of(tensor, view.selection)));
    const std::optional<Rank>& rank = view.selection.rank;
    cells.push_back(std::to_string(std::ranges::count_if(
        tensor.chunks, [&](const Chunk& chunk) { return !rank || chunk.holder == *rank; })));
    if (sha256) cells.push_back(std::move(*sha256));
    table.add(std::move(cells));
  }
  console.print(table.text() + more_line(shown, view.tensors.size()) + unread_list(view));
  return Exit::success;
}

Result<Exit> show_shards(Console& console, const View& view) {
  struct Shard {
    const TensorEntry* tensor;
    const Chunk* chunk;
  };
  std::vector<Shard> shards;
  for (const TensorEntry* tensor : view.tensors)
    for (const Chunk& chunk : tensor->chunks)
      if (!view.selection.rank || chunk.holder == *view.selection.rank)
        shards.push_back({tensor, &chunk});
  const std::size_t shown = shown_of(view, shards.size(), kEverything);
  if (view.output == Output::json) {
    JsonWriter json;
    open_document(json, "shards");
    json.key("shards").open_list();
    for (std::size_t i = 0; i < shown; ++i)
      shard_json(json, view, *shards[i].tensor, *shards[i].chunk);
    json.close_list();
    write_unread(json, view);
    json.close_object();
    console.print(json.take());
    return Exit::success;
  }
  Table table({{"tensor"},
               {"state"},
               {"rank", Align::right},
               {"rows"},
               {"file"},
               {"from byte", Align::right},
               {"to byte", Align::right}});
  for (std::size_t i = 0; i < shown; ++i) {
    const auto& [tensor, chunk] = shards[i];
    table.add({tensor->name, tensor->state, std::to_string(index_of(chunk->holder)),
               rows_text(chunk->box, tensor->shape), view.catalog().files.at(chunk->file).name,
               std::to_string(chunk->offset), std::to_string(chunk->offset + chunk->length)});
  }
  console.print(table.text() + more_line(shown, shards.size()) + unread_text(view));
  return Exit::success;
}

// -k: the groups that hold a parameter of that name.
bool wants_group(const View& view, const GroupEntry& group) {
  const auto& globs = view.selection.include;
  return globs.empty() || std::ranges::any_of(globs, [&](const std::string& glob) {
           return std::ranges::any_of(
               group.params, [&](const auto& name) { return formats::glob_match(glob, name); });
         });
}

Result<Exit> show_groups(Console& console, const View& view) {
  const auto& groups = view.catalog().groups;
  if (view.output == Output::json) {
    JsonWriter json;
    open_document(json, "groups");
    json.key("groups").open_list();
    for (const GroupEntry& group : groups) {
      if (!wants_group(view, group)) continue;
      json.open_object().put("optimizer", group.optimizer).key("settings").open_object();
      for (const auto& [name, value] : group.settings) json.key(name).raw(formats::to_json(value));
      json.close_object().put("params", group.params).close_object();
    }
    json.close_list().close_object();
    console.print(json.take());
    return Exit::success;
  }
  std::string out;
  if (groups.empty()) out = "  no parameter groups are recorded\n";
  for (std::size_t i = 0; i < groups.size(); ++i) {
    const GroupEntry& group = groups[i];
    if (!wants_group(view, group)) continue;
    out += compose(
        "  group {}  {}, {}\n", i,
        (group.optimizer.empty() ? "optimizer not recorded" : printable(group.optimizer, 40)),
        plural(group.params.size(), "parameter"));
    for (const auto& [name, value] : group.settings)
      out += compose("    {} = {}\n", printable(name, 40), value_text(value));
    const std::size_t shown = shown_of(view, group.params.size(), kEverything);
    for (std::size_t p = 0; p < shown; ++p)
      out += "    - " + printable(group.params[p], 100) + "\n";
    out += more_line(shown, group.params.size());
  }
  console.print(out);
  return Exit::success;
}

}  // namespace ebb::tools::inspect
