// What one file is, told by its first bytes, and its parts.
#include <algorithm>

#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/units.h"
#include "ebb/formats/native/meta_scan.h"
#include "ebb/formats/native/store_files.h"
#include "tools/ckpt_inspect/raw.h"
#include "tools/cli/text.h"

namespace ebb::tools::inspect {

using formats::ByteSource;
using Source = std::shared_ptr<const ByteSource>;

namespace {

constexpr std::uint64_t kMaxPickle = 256 * formats::MiB;
constexpr std::uint64_t kMaxText = 64 * formats::KiB;  // shown of a header or a text file
constexpr std::size_t kLine = 160;                     // bytes of text on one line
constexpr std::uint64_t kHead = 64;                    // bytes shown of what we do not know

RawNode leaf(std::uint64_t at, std::string text) { return {at, std::move(text), {}, false}; }

bool add(RawNode& into, RawNode node, RawBudget& budget) {
  if (!budget.take()) {
    into.more = true;
    return false;
  }
  into.children.push_back(std::move(node));
  return true;
}

RawNode damage(std::uint64_t at, const Error& error) {
  return leaf(at, "cannot be taken apart: " + printable(error.message, 1000));
}

// Text in lines; JSON breaks after each comma and brace outside its strings, valid or not.
enum class Breaks : std::uint8_t { lines, json };
void add_text(RawNode& into, std::uint64_t at, std::string_view text, Breaks breaks,
              RawBudget& budget) {
  std::size_t begin = 0;
  int depth = 0, line_depth = 0;
  bool quoted = false;
  const auto flush = [&](std::size_t end) {
    const std::string_view line = text.substr(begin, end - begin);
    const bool blank = line.find_first_not_of(" \r\n") == std::string_view::npos;
    const std::size_t indent = 2 * static_cast<std::size_t>(std::clamp(line_depth, 0, 40));
    const std::uint64_t from = at + begin;
    begin = end;
    line_depth = depth;
    return blank ||
           add(into, leaf(from, std::string(indent, ' ') + printable(line, kLine)), budget);
  };
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (breaks == Breaks::lines) {
      if (c == '\n' && !flush(i + 1)) return;
      continue;
    }
    if (quoted && c == '\\') {
      ++i;
    } else if (c == '"') {
      quoted = !quoted;
    } else if (!quoted && (c == '{' || c == '}')) {
      depth += c == '{' ? 1 : -1;
      if (c == '{' && !flush(i + 1)) return;
    } else if (!quoted && c == ',' && depth < 3) {
      if (text.substr(begin, i - begin).find('[') != std::string_view::npos &&
          text.substr(begin, i - begin).find(']') == std::string_view::npos)
        continue;  // inside a list
      if (!flush(i + 1)) return;
    }
  }
  flush(text.size());
}

Result<> add_text_file(RawNode& out, const ByteSource& source, Breaks breaks, RawBudget& budget) {
  const std::uint64_t size = std::min(source.size(), kMaxText);
  EBB_TRY_ASSIGN(const ByteVector bytes, read_bytes(source, 0, size, kMaxText));
  add_text(out, 0, formats::text_of(bytes), breaks, budget);
  if (source.size() > size) out.more = true;
  return {};
}

Result<> add_safetensors(RawNode& out, const ByteSource& source, std::uint64_t length,
                         RawBudget& budget) {
  const std::uint64_t size = std::min({length, source.size() - 8, kMaxText});
  EBB_TRY_ASSIGN(const ByteVector bytes, read_bytes(source, 8, size, kMaxText));
  RawNode header = leaf(8, "header of " + count_text(length) + " bytes, JSON");
  add_text(header, 8, formats::text_of(bytes), Breaks::json, budget);
  if (length > size) header.more = true;
  out.children.push_back(std::move(header));
  if (length < source.size() - 8)
    add(out, leaf(8 + length, "data, " + count_text(source.size() - 8 - length) + " bytes"),
        budget);
  return {};
}

Result<> add_pickle(RawNode& out, const formats::ByteSource& source, std::uint64_t base,
                    ByteVector bytes, RawBudget& budget) {
  const std::uint64_t size = bytes.size();
  EBB_TRY_ASSIGN(const formats::PickleGraph graph,
                 formats::PickleGraph::parse(std::move(bytes), std::string(source.name())));
  RawNode pickle = leaf(base, "pickle of " + count_text(size) + " bytes, nothing of it executed");
  pickle.children.push_back(raw_pickle(graph, base, budget));
  RawNode names = leaf(base, "names it refers to: " + count_text(graph.names().size()));
  for (const auto& name : graph.names())
    if (!add(names, leaf(base + name.offset, printable(name.name)), budget)) break;
  pickle.children.push_back(std::move(names));
  out.children.push_back(std::move(pickle));
  return {};
}

std::string entry_text(const formats::ZipEntry& entry) {
  return compose("{}  {} bytes, {}, crc32 {}", printable(entry.name, kLine), count_text(entry.size),
                 (entry.deflated ? "deflated to " + count_text(entry.stored_size) : "stored"),
                 entry.crc);
}

Result<> add_zip(RawNode& out, const Source& source, std::uint64_t offset, std::uint64_t length,
                 RawBudget& budget) {
  EBB_TRY_ASSIGN(const formats::ZipReader zip, formats::ZipReader::open(source, offset, length));
  for (const formats::ZipEntry& entry : zip.entries()) {
    const auto data = zip.data_offset(entry);
    if (!add(out, leaf(data ? *data : offset + entry.header_at, entry_text(entry)), budget))
      return {};
    RawNode& node = out.children.back();
    const std::string_view name = std::string_view(entry.name).substr(entry.name.rfind('/') + 1);
    if (name == "version" || name == "byteorder" || name == ".format_version") {
      EBB_TRY_ASSIGN(const ByteVector text, zip.read(entry, kLine));
      node.text += ": " + printable(formats::text_of(text), kLine);
    } else if (name.ends_with(".pkl") && data) {
      auto bytes = zip.read(entry, kMaxPickle);
      auto done =
          bytes ? add_pickle(node, *source, entry.deflated ? 0 : *data, std::move(*bytes), budget)
                : Result<>(bytes.error());
      if (!done) node.children.push_back(damage(*data, done.error()));
    }
  }
  return {};
}

Result<> add_items(RawNode& out, const Source& source, const std::vector<RawItem>& items,
                   RawBudget& budget) {
  for (const RawItem& item : items) {
    RawNode node = leaf(item.offset, count_text(item.length) + " bytes: " + printable(item.label));
    if (auto done = add_zip(node, source, item.offset, item.length, budget); !done)
      node.children.push_back(damage(item.offset, done.error()));
    if (!add(out, std::move(node), budget)) return {};
  }
  return {};
}

Result<> add_meta(RawNode& out, const ByteSource& source, RawBudget& budget) {
  EBB_TRY_ASSIGN(const formats::native::MetaScan scan, formats::native::scan_meta(source));
  const formats::native::Superblock& s = scan.superblock;
  add(out, leaf(0, "superblock A" + (scan.damage_a ? ", damaged: " + scan.damage_a->message : "")),
      budget);
  add(out,
      leaf(formats::native::kBlock,
           "superblock B" + (scan.damage_b ? ", damaged: " + scan.damage_b->message : "")),
      budget);
  add(out,
      leaf(0, compose("store {}, version {}, rank {} of {}, tiles of {} bytes in {} slots",
                      formats::native::to_string(s.store), s.version, index_of(s.rank), s.world,
                      count_text(s.tile_bytes), s.slots)),
      budget);
  for (const auto& found : scan.regions) {
    std::string text =
        compose("manifest region {}: generation {}", found.region, found.header.generation);
    if (found.header.is_void) text += ", void";
    if (found.damage) text += ", damaged: " + printable(found.damage->message, 1000);
    if (!add(out, leaf(region_offset(s, found.region), std::move(text)), budget)) break;
  }
  return {};
}

Result<> take_apart(RawNode& out, const Source& source, std::string_view head,
                    const std::vector<RawItem>& items, RawBudget& budget) {
  const std::string_view name = source->name();
  if (!items.empty()) return add_items(out, source, items, budget);
  if (name.ends_with("/meta.ebb")) return add_meta(out, *source, budget);
  if (head.starts_with("PK\x03\x04")) {
    out.text += ", a zip archive";
    return add_zip(out, source, 0, source->size(), budget);
  }
  if (head.size() >= 2 && head[0] == '\x80' && head[1] >= 2 && head[1] <= 5) {
    EBB_TRY_ASSIGN(ByteVector bytes, read_bytes(*source, 0, source->size(), kMaxPickle));
    return add_pickle(out, *source, 0, std::move(bytes), budget);
  }
  if (name.ends_with(".safetensors") && head.size() > 8) {
    out.text += ", safetensors";
    return add_safetensors(out, *source, formats::load_le<std::uint64_t>(formats::view_of(head)),
                           budget);
  }
  if (name.ends_with(".json")) return add_text_file(out, *source, Breaks::json, budget);
  const bool text = !head.empty() && std::all_of(head.begin(), head.end(), [](char c) {
    return static_cast<unsigned char>(c) >= 0x20 || c == '\n' || c == '\r' || c == '\t';
  });
  if (text) return add_text_file(out, *source, Breaks::lines, budget);
  if (head.starts_with("\x89HDF\r\n\x1a\n"))
    out.text += compose(", HDF5, superblock version {}", head.size() > 8 ? head[8] : 0);
  if (!head.empty()) add(out, leaf(0, hex_of(head, kHead)), budget);
  return {};
}

}  // namespace

RawNode raw_file(const Source& source, const std::vector<RawItem>& items, RawBudget& budget) {
  RawNode out =
      leaf(0, compose("{}  {} bytes", printable(source->name()), count_text(source->size())));
  const auto head = read_bytes(*source, 0, std::min(source->size(), kHead), kHead);
  auto done = head ? take_apart(out, source, formats::text_of(*head), items, budget)
                   : Result<>(head.error());
  if (!done) {
    out.children.push_back(damage(0, done.error()));
    if (head) out.children.push_back(leaf(0, hex_of(formats::text_of(*head), kHead)));
  }
  return out;
}

}  // namespace ebb::tools::inspect
