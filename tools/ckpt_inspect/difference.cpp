#include "formats/core/json_text.h"
#include "tools/ckpt_inspect/modes.h"
#include "tools/cli/compare.h"
#include "tools/cli/text.h"

namespace tools::inspect {

using formats::Result;

namespace {

std::string difference_json(const View& view, const View& other, const Comparison& comparison) {
  JsonWriter json;
  open_document(json, "diff");
  json.key("left").text(view.path).key("right").text(other.path);
  json.key("same").raw(comparison.same() ? "true" : "false");
  json.key("equal_tensors").number(comparison.equal_tensors);
  json.key("equal_bytes").number(comparison.equal_bytes);
  json.key("values_in_both").number(comparison.values_in_both);
  json.key("values_only_left").number(comparison.values_only_left);
  json.key("values_only_right").number(comparison.values_only_right);
  json.key("differences").open_list();
  for (const std::string& difference : comparison.differences) json.text(difference);
  json.close_list().close_object();
  return json.take();
}

std::string difference_text(const Console& console, const View& view,
                            const Comparison& comparison) {
  std::string out;
  const std::size_t shown = shown_of(view, comparison.differences.size(), 20);
  for (std::size_t i = 0; i < shown; ++i) out += "  " + comparison.differences[i] + "\n";
  if (shown < comparison.differences.size())
    out += "  ... " + count_text(comparison.differences.size() - shown) + " more\n";
  out += comparison.same()
             ? console.good("same") + ": "
             : console.bad(plural(comparison.differences.size(), "difference")) + "; ";
  out += plural(comparison.equal_tensors, "tensor") + " (" + bytes_text(comparison.equal_bytes) +
         ") equal bit for bit, " + plural(comparison.values_in_both, "value") + " compared\n";
  if (comparison.values_only_left + comparison.values_only_right != 0)
    out += "  not compared: " + count_text(comparison.values_only_left) +
           " values only on the left, " + count_text(comparison.values_only_right) +
           " only on the right\n";
  return out;
}

}  // namespace

Result<Exit> show_difference(Console& console, const View& view, const View& other) {
  const auto always = [](const formats::TensorEntry&) { return Result<>(); };
  TRY_ASSIGN(Comparison comparison,
             compare({view.checkpoint, view.tensors}, {other.checkpoint, other.tensors}, always));
  // Another format may not be able to hold a value; the same one lost it.
  const std::uint64_t unmatched = comparison.values_only_left + comparison.values_only_right;
  if (unmatched != 0 && view.catalog().format == other.catalog().format)
    comparison.differences.push_back(plural(unmatched, "value") + " only on one side");
  console.print(view.output == Output::json ? difference_json(view, other, comparison)
                                            : difference_text(console, view, comparison));
  return comparison.same() ? Exit::success : Exit::different;
}

}  // namespace tools::inspect
