// The shard map: one strip per rank and state, width is bytes, colour is the layer; hovering names
// tensor, rows, file and byte. One HTML file without scripts or network, light and dark.
#include <algorithm>
#include <array>
#include <map>

#include "ebb/formats/core/json_text.h"
#include "tools/ckpt_inspect/modes.h"
#include "tools/cli/result_file.h"
#include "tools/cli/text.h"

namespace ebb::tools::inspect {

namespace {

// What tells a map of ours from anything else that has its name.
constexpr std::string_view kBeginning =
    "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Shard map: ";
constexpr std::size_t kMaxRects = 5000;   // above: neighbours of one layer become one
constexpr std::uint32_t kMaxRanks = 128;  // strips of one state
constexpr double kStrip = 820;            // units of the fullest rank's strip
constexpr double kLeft = 80;

// Paul Tol's "bright" scheme, told apart with any colour vision; grey: no layer number.
// `ink` is black or white, whichever has a contrast of at least 4.5 on it.
struct Colour {
  std::string_view fill;
  std::string_view ink;
};
constexpr std::array<Colour, 6> kColours = {{{"#4477AA", "#fff"},
                                             {"#EE6677", "#000"},
                                             {"#228833", "#fff"},
                                             {"#CCBB44", "#000"},
                                             {"#66CCEE", "#000"},
                                             {"#AA3377", "#fff"}}};
constexpr Colour kNoLayer = {"#999999", "#000"};

struct Mark {
  std::string label;
  std::string hover;
  std::string layer;  // the first part of the dotted name that is a number
  std::uint64_t bytes = 0;
};
using Strip = std::vector<Mark>;

constexpr std::array<std::pair<char, std::string_view>, 4> kEntities = {
    {{'<', "&lt;"}, {'>', "&gt;"}, {'&', "&amp;"}, {'"', "&quot;"}}};

// A line break stays one, everything else is made safe to show.
std::string escaped(std::string_view text) {
  const std::size_t end = text.find('\n');
  if (end != std::string_view::npos)
    return escaped(text.substr(0, end)) + "\n" + escaped(text.substr(end + 1));
  std::string out;
  for (const char& c : printable(text, 400)) {
    const auto* entity = std::ranges::find(kEntities, c, &std::pair<char, std::string_view>::first);
    out += entity == kEntities.end() ? std::string_view(&c, 1) : entity->second;
  }
  return out;
}

std::string fixed(double value) { return decimal(value, 2); }

// "12" of "blocks.12.fc1.weight": fc1 is no layer.
std::string layer_of(std::string_view name) {
  for (std::size_t at = 0; at < name.size();) {
    const std::size_t end = std::min(name.find('.', at), name.size());
    const std::string_view part = name.substr(at, end - at);
    if (!part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos)
      return std::string(part);
    at = end + 1;
  }
  return {};
}

Colour colour_of(const std::string& layer) {
  if (layer.empty()) return kNoLayer;
  std::size_t number = 0;
  for (const char digit : layer) number = number * 10 + static_cast<std::size_t>(digit - '0');
  return kColours[number % kColours.size()];
}

std::string short_name(std::string_view name) {
  const std::size_t last = name.rfind('.');
  if (last == std::string_view::npos || last == 0) return std::string(name);
  const std::size_t before = name.rfind('.', last - 1);
  return std::string(name.substr(before == std::string_view::npos ? 0 : before + 1));
}

std::string bytes_range(const Chunk& chunk) {
  return compose("bytes {}-{}", chunk.offset, chunk.offset + chunk.length);
}

std::map<std::uint32_t, Strip> strips_of(const View& view, std::string_view state) {
  std::map<std::uint32_t, Strip> strips;
  for (const TensorEntry* tensor : view.tensors) {
    if (tensor->state != state) continue;
    for (const Chunk& chunk : tensor->chunks) {
      if (view.selection.rank && chunk.holder != *view.selection.rank) continue;
      const std::uint64_t elements = formats::checked_volume(chunk.box.extent).value_or(0);
      if (elements == 0) continue;
      strips[index_of(chunk.holder)].push_back(
          {short_name(tensor->name),
           compose("{} {} {}\nrows {}\n{} {}", tensor->name, formats::to_string(tensor->shape),
                   name_of(tensor->dtype), rows_text(chunk.box, tensor->shape),
                   view.catalog().files.at(chunk.file).name, bytes_range(chunk)),
           layer_of(tensor->name), elements * formats::bits_of(tensor->dtype) / 8});
    }
  }
  return strips;
}

// Neighbours of the same layer become one mark.
Strip merged(const Strip& strip) {
  Strip out;
  for (const Mark& mark : strip) {
    if (out.empty() || out.back().layer != mark.layer) {
      out.push_back(mark);
      out.back().label = mark.layer.empty() ? "" : mark.layer;
      out.back().hover = mark.layer.empty() ? "outside the layers" : "layer " + mark.layer;
    } else {
      out.back().bytes += mark.bytes;
    }
  }
  return out;
}

std::uint64_t bytes_of(const Strip& strip) {
  std::uint64_t bytes = 0;
  for (const Mark& mark : strip) bytes += mark.bytes;
  return bytes;
}

std::string strip_svg(std::uint32_t rank, const Strip& strip, double y, double scale) {
  const std::string top = fixed(y);
  std::string out = compose("<text x=\"4\" y=\"{}\">rank {}</text>\n", fixed(y + 19), rank);
  double x = kLeft;
  for (const Mark& mark : strip) {
    const double width = static_cast<double>(mark.bytes) * scale;
    const Colour colour = colour_of(mark.layer);
    out += compose(
        "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"28\" fill=\"{}\"><title>{}, "
        "{}</title></rect>\n",
        fixed(x), top, fixed(width), colour.fill, escaped(mark.hover), bytes_text(mark.bytes));
    if (width > 7.0 * static_cast<double>(mark.label.size()) + 4)
      out += compose("<text class=\"in\" fill=\"{}\" x=\"{}\" y=\"{}\">{}</text>\n", colour.ink,
                     fixed(x + width / 2), fixed(y + 18), escaped(mark.label));
    x += width;
  }
  return compose("{}<text x=\"{}\" y=\"{}\">{}</text>\n", out, fixed(x + 6), fixed(y + 19),
                 bytes_text(bytes_of(strip)));
}

std::string section(const View& view, std::string_view state) {
  std::map<std::uint32_t, Strip> strips = strips_of(view, state);
  std::size_t rects = 0;
  std::uint64_t fullest = 1, total = 0;
  for (const auto& [rank, strip] : strips) rects += strip.size();
  for (auto& [rank, strip] : strips) {
    if (rects > kMaxRects) strip = merged(strip);
    fullest = std::max(fullest, bytes_of(strip));
    total += bytes_of(strip);
  }
  const std::size_t shown = std::min<std::size_t>(strips.size(), kMaxRanks);
  std::string out = compose("<h2>{}</h2>\n<p>{} on {}", escaped(state), bytes_text(total),
                            plural(strips.size(), "rank"));
  if (shown < strips.size()) out += compose(", the first {} are drawn", shown);
  if (rects > kMaxRects) out += "; tensors of one layer are drawn as one";
  const double height = 34 * static_cast<double>(shown) + 6;
  out +=
      "</p>\n<div class=\"wide\"><svg viewBox=\"0 0 1000 " + fixed(height) + "\" role=\"img\">\n";
  double y = 2;
  std::size_t drawn = 0;
  for (const auto& [rank, strip] : strips) {
    if (drawn++ == shown) break;
    out += strip_svg(rank, strip, y, kStrip / static_cast<double>(fullest));
    y += 34;
  }
  return out + "</svg></div>\n";
}

// The same in words, for those who cannot see or search a picture.
std::string table_of(const View& view) {
  std::string out =
      "<details><summary>The same as a table</summary><table><tr><th>tensor<th>state<th>rank<th>"
      "rows<th>file<th>bytes</tr>\n";
  std::size_t lines = 0;
  for (const TensorEntry* tensor : view.tensors) {
    for (const Chunk& chunk : tensor->chunks) {
      if (++lines > kMaxRects) continue;
      out += compose("<tr><td>{}<td>{}<td>{}<td>{}<td>{}<td>{}-{}</tr>\n", escaped(tensor->name),
                     escaped(tensor->state), index_of(chunk.holder),
                     escaped(rows_text(chunk.box, tensor->shape)),
                     escaped(view.catalog().files.at(chunk.file).name), chunk.offset,
                     chunk.offset + chunk.length);
    }
  }
  out += "</table>";
  if (lines > kMaxRects) out += "<p>" + plural(lines - kMaxRects, "more line") + " left out.</p>";
  return out + "</details>\n";
}

constexpr std::string_view kStyle =
    "<style>:root{color-scheme:light dark;--ink:#222;--paper:#fff;--soft:#666}"
    "@media(prefers-color-scheme:dark){:root{--ink:#ddd;--paper:#16181c;--soft:#999}}"
    "body{font:14px/1.45 system-ui,sans-serif;color:var(--ink);background:var(--paper);"
    "max-width:1040px;margin:2em auto;padding:0 1em}h1{font-size:20px;margin-bottom:0}"
    "h2{font-size:15px;margin:1.4em 0 0}p{color:var(--soft);margin:.2em 0}"
    ".wide{overflow-x:auto}svg{width:100%;min-width:760px;height:auto;display:block}"
    "text{font-size:11px}text:not(.in){fill:var(--ink)}"
    "text.in{text-anchor:middle;font-size:10px;pointer-events:none}"
    "i{display:inline-block;width:1em;height:.8em;margin:0 .15em 0 .6em}"
    "rect{stroke:var(--paper);stroke-width:.7}table{border-collapse:collapse;font-size:12px}"
    "td,th{text-align:left;padding:1px 10px 1px 0}</style>\n";

std::string headline(const View& view) {
  std::map<Rank, std::uint64_t> held;
  std::uint64_t elements = 0;
  for (const TensorEntry* tensor : view.tensors) {
    elements += elements_of(*tensor);
    for (const Chunk& chunk : tensor->chunks)
      held[chunk.holder] += formats::checked_volume(chunk.box.extent).value_or(0);
  }
  std::uint64_t fullest = 0, sum = 0;
  for (const auto& [rank, count] : held) {
    fullest = std::max(fullest, count);
    sum += count;
  }
  const double mean =
      held.empty() ? 0 : static_cast<double>(sum) / static_cast<double>(held.size());
  const double above = mean > 0 ? 100.0 * (static_cast<double>(fullest) / mean - 1) : 0;
  const std::uint64_t padding = view.catalog().padding_elems;
  const double whole = static_cast<double>(elements + padding);
  const double padded = whole > 0 ? 100.0 * static_cast<double>(padding) / whole : 0;
  return compose("{}{}{}; the fullest has {} % more than the mean; padding {} %",
                 plural(held.size(), "rank"), held.size() == 1 ? " holds " : " hold ",
                 plural(elements, "element"), fixed(above), fixed(padded));
}

// What the colours say, from the names that are drawn.
std::string legend(const View& view) {
  bool layers = false, others = false;
  for (const TensorEntry* tensor : view.tensors)
    (layer_of(tensor->name).empty() ? others : layers) = true;
  const auto swatch = [](Colour colour) {
    return compose("<i style=\"background:{}\"></i>", colour.fill);
  };
  std::string out = "<p>width: bytes; colour:";
  for (std::size_t i = 0; layers && i < kColours.size(); ++i)
    out += compose("{}layer {}", swatch(kColours[i]), i);
  if (layers) out += " and so on, again from the first";
  if (others) out += swatch(kNoLayer) + "no layer number in the name";
  return out + "</p>\n";
}

std::string unread_paragraph(const View& view) {
  const std::string line = unread_line(view);
  return line.empty() ? "" : compose("<p><strong>{}</strong></p>\n", escaped(line));
}

std::string page(const View& view) {
  const Catalog& catalog = view.catalog();
  const Result<> coverage = prove_coverage(catalog);
  std::string out = compose(
      "{}{}</title>\n{}</head><body>\n<h1>{}</h1>\n<p>{} &middot; {}{} &middot; {} &middot; "
      "{}</p>\n{}{}",
      kBeginning, escaped(view.path), kStyle, headline(view), escaped(view.path),
      escaped(catalog.format), (catalog.step ? compose(" &middot; step {}", *catalog.step) : ""),
      escaped(catalog.partition),
      (coverage ? std::string("every element is stored exactly once")
                : "<strong>incomplete: " + escaped(coverage.error().message) + "</strong>"),
      unread_paragraph(view), legend(view));
  std::vector<std::string_view> states;
  for (const TensorEntry* tensor : view.tensors)
    if (std::ranges::find(states, tensor->state) == states.end()) states.push_back(tensor->state);
  for (const std::string_view state : states) out += section(view, state);
  return out + table_of(view) + "</body></html>\n";
}

}  // namespace

Result<Exit> write_map(Console& console, const View& view, const std::string& file) {
  if (!file.ends_with(".html") && !file.ends_with(".htm"))
    return Error{Code::usage, "--map " + printable(file) + ": the map is a page of HTML",
                 "--map map.html"};
  const ResultFile map{"--map", file, "shard map", kBeginning};
  EBB_TRY(check_replaceable(map));
  const std::string html = page(view);
  EBB_TRY(write_result(map, html));
  if (view.output == Output::json) {
    JsonWriter json;
    open_document(json, "map");
    json.put("file", file).put("bytes", html.size());
    write_unread(json, view);
    json.close_object();
    console.print(json.take());
  } else {
    console.print(compose("shard map: {}, {}\n{}", printable(file), bytes_text(html.size()),
                          unread_text(view)));
  }
  return Exit::success;
}

}  // namespace ebb::tools::inspect
