#include "ebb/formats/core/json_text.h"
#include "tools/ckpt_inspect/raw.h"
#include "tools/cli/text.h"

namespace ebb::tools::inspect {

using formats::kNoPickle;
using formats::PickleGraph;
using formats::PickleId;
using formats::PickleKind;

namespace {

constexpr std::size_t kInline = 72;  // characters of a container shown on its parent's line
constexpr std::size_t kText = 120;   // bytes shown of one string
constexpr int kInlineDepth = 4;      // of containers in it

class Printer {
 public:
  Printer(const PickleGraph& graph, std::uint64_t base, RawBudget& budget)
      : graph_(graph), base_(base), budget_(budget) {}

  RawNode node(PickleId id, std::string prefix, int depth) {
    RawNode out;
    if (const auto offset = graph_.offset(id)) out.at = base_ + *offset;
    if (const auto inlined = short_text(id, 0); inlined && inlined->size() <= kInline) {
      out.text = std::move(prefix) + *inlined;
      return out;
    }
    out.text = std::move(prefix) + head(id);
    if (depth >= kRawDepth) {
      out.more = true;
    } else {
      add_children(id, depth, out);
    }
    return out;
  }

 private:
  // Constants, and containers of few of them; nullopt where it does not fit on a line.
  std::optional<std::string> short_text(PickleId id, int depth) const {
    switch (graph_.kind(id)) {
      case PickleKind::none:
        return "None";
      case PickleKind::boolean:
        return graph_.integer(id) != 0 ? "True" : "False";
      case PickleKind::integer:
        return std::to_string(graph_.integer(id));
      case PickleKind::real:
        return shortest(graph_.real(id));
      case PickleKind::big_integer:
        return compose("int of {} 0x{}", plural(graph_.text(id).size(), "byte"),
                       hex_of(graph_.text(id), 8));
      case PickleKind::global:
        return printable(graph_.text(id), kText);
      default:
        break;
    }
    if (depth >= kInlineDepth) return std::nullopt;
    return short_container(id, depth);
  }

  std::optional<std::string> short_container(PickleId id, int depth) const {
    switch (graph_.kind(id)) {
      case PickleKind::string:
        return graph_.text(id).size() <= kText / 2
                   ? std::optional(json_string(printable(graph_.text(id), kText)))
                   : std::nullopt;
      case PickleKind::bytes:
        return graph_.text(id).size() <= 16 ? std::optional("bytes " + hex_of(graph_.text(id), 16))
                                            : std::nullopt;
      case PickleKind::tuple:
        return joined(graph_.items(id), "(", ")", depth);
      case PickleKind::list:
        return joined(graph_.items(id), "[", "]", depth);
      case PickleKind::persistent:
        return joined(graph_.items(id), "persistent ", "", depth);
      case PickleKind::dict:
        return graph_.items(id).empty() ? std::optional<std::string>("{}") : std::nullopt;
      case PickleKind::object: {
        if (graph_.state(id) != kNoPickle) return std::nullopt;
        const auto callee = short_text(graph_.callee(id), depth + 1);
        const auto args = short_text(graph_.args(id), depth + 1);
        return callee && args ? std::optional(*callee + *args) : std::nullopt;
      }
      default:
        return std::nullopt;
    }
  }

  std::optional<std::string> joined(std::span<const PickleId> items, std::string_view open,
                                    std::string_view close, int depth) const {
    std::string out(open);
    for (std::size_t i = 0; i < items.size(); ++i) {
      const auto item = short_text(items[i], depth + 1);
      if (!item || out.size() + item->size() > kInline) return std::nullopt;
      out += (i == 0 ? "" : ", ") + *item;
    }
    if (items.size() == 1 && close == ")") out += ',';
    return out + std::string(close);
  }

  std::string head(PickleId id) const {
    switch (graph_.kind(id)) {
      case PickleKind::string:
        return compose("{} ({})", json_string(printable(graph_.text(id), kText)),
                       plural(graph_.text(id).size(), "byte"));
      case PickleKind::bytes:
        return plural(graph_.text(id).size(), "byte") + " " + hex_of(graph_.text(id), 16);
      case PickleKind::dict:
        return "dict of " + count_text(graph_.items(id).size() / 2);
      case PickleKind::object: {
        const auto callee = short_text(graph_.callee(id), 0);
        return "would call " + callee.value_or("an object's method");
      }
      case PickleKind::persistent:
        return "persistent id";
      default:
        return compose("{} of {}", name_of(graph_.kind(id)), count_text(graph_.items(id).size()));
    }
  }

  bool add(RawNode& out, PickleId id, std::string prefix, int depth) {
    if (!budget_.take()) {
      out.more = true;
      return false;
    }
    out.children.push_back(node(id, std::move(prefix), depth + 1));
    return true;
  }

  void add_children(PickleId id, int depth, RawNode& out) {
    const PickleKind kind = graph_.kind(id);
    if (kind == PickleKind::object) {
      if (!graph_.is(graph_.callee(id), PickleKind::global) &&
          !add(out, graph_.callee(id), "callee ", depth))
        return;
      const bool bare =
          graph_.is(graph_.args(id), PickleKind::tuple) && graph_.items(graph_.args(id)).empty();
      if (!bare && !add(out, graph_.args(id), "with ", depth)) return;
      if (graph_.state(id) != kNoPickle) add(out, graph_.state(id), "state ", depth);
      return;
    }
    if (kind == PickleKind::string || kind == PickleKind::bytes) return;
    const std::span<const PickleId> items = graph_.items(id);
    if (kind != PickleKind::dict) {
      for (const PickleId item : items)
        if (!add(out, item, {}, depth)) return;
      return;
    }
    for (std::size_t i = 0; i + 1 < items.size(); i += 2) {
      const auto key = short_text(items[i], 0);
      if (!add(out, items[i + 1], (key ? *key : "a " + head(items[i])) + ": ", depth)) return;
      const auto at = graph_.offset(items[i]);
      if (at) out.children.back().at = base_ + *at;
      if (!key && !add(out, items[i], "its key ", depth)) return;
    }
  }

  const PickleGraph& graph_;
  std::uint64_t base_;
  RawBudget& budget_;
};

}  // namespace

std::string hex_of(std::string_view bytes, std::size_t limit) {
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string out;
  for (const char c : bytes.substr(0, limit)) {
    out += kHex[static_cast<unsigned char>(c) >> 4];
    out += kHex[static_cast<unsigned char>(c) & 15];
  }
  return bytes.size() > limit ? out + "..." : out;
}

RawNode raw_pickle(const PickleGraph& graph, std::uint64_t base, RawBudget& budget) {
  RawNode out = Printer(graph, base, budget).node(graph.root(), {}, 0);
  out.at = base;
  return out;
}

}  // namespace ebb::tools::inspect
