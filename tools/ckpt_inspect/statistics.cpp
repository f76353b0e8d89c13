// --stats: one line a tensor.
#include "ebb/formats/elements/statistics.h"

#include <array>
#include <charconv>
#include <cstdio>

#include "tools/ckpt_inspect/modes.h"
#include "tools/cli/text.h"

namespace ebb::tools::inspect {

using formats::Statistics;

namespace {

std::string number_text(double value) {
  std::array<char, 32> out{};
  std::snprintf(out.data(), out.size(), "%.5g", value);
  return out.data();
}

// The shortest text that reads back as the same double. No whole number of more digits than
// readers of JSON have in an integer.
std::string number_json(double value) {
  std::array<char, 32> out{};
  const auto [end, error] = std::to_chars(out.data(), out.data() + out.size(), value);
  std::string text(out.data(), end);
  if (text.size() > 15 && text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string share_text(std::uint64_t part, std::uint64_t whole) {
  if (part == 0 || whole == 0) return "0 %";
  std::array<char, 32> out{};
  std::snprintf(out.data(), out.size(), "%.3g %%",
                100 * static_cast<double>(part) / static_cast<double>(whole));
  return out.data();
}

void write_statistics(JsonWriter& json, const TensorEntry& tensor,
                      const std::optional<Statistics>& found) {
  json.open_object().key("key");
  if (tensor.key)
    json.text(*tensor.key);
  else
    json.null();
  json.key("name").text(tensor.name).key("state").text(tensor.state);
  json.key("dtype").text(name_of(tensor.dtype)).key("shape");
  write_shape(json, tensor.shape);
  json.key("stats");
  if (!found) {
    json.null().close_object();
    return;
  }
  const auto finite = [&](std::string_view name, double value) {
    json.key(name).raw(found->finite() == 0 ? "null" : number_json(value));
  };
  json.open_object().key("numbers").number(found->numbers);
  finite("min", found->smallest);
  finite("max", found->largest);
  finite("mean", found->mean);
  finite("norm", found->norm);
  json.key("zeros").number(found->zeros).key("nans").number(found->nans);
  json.key("infinities").number(found->infinities).close_object().close_object();
}

std::vector<std::string> cells_of(const TensorEntry& tensor,
                                  const std::optional<Statistics>& found) {
  std::vector<std::string> cells = {tensor.name, tensor.state, std::string(name_of(tensor.dtype)),
                                    formats::to_string(tensor.shape)};
  if (!found || found->finite() == 0) {
    cells.insert(cells.end(), 5, "-");
  } else {
    for (const double value : {found->smallest, found->largest, found->mean, found->norm})
      cells.push_back(number_text(value));
    cells.push_back(share_text(found->zeros, found->numbers));
  }
  cells.push_back(found ? count_text(found->nans) : "-");
  cells.push_back(found ? count_text(found->infinities) : "-");
  return cells;
}

}  // namespace

Result<Exit> show_statistics(Console& console, const View& view) {
  Table table({{"tensor"},
               {"state"},
               {"dtype"},
               {"shape"},
               {"min", Align::right},
               {"max", Align::right},
               {"mean", Align::right},
               {"norm", Align::right},
               {"zeros", Align::right},
               {"NaN", Align::right},
               {"Inf", Align::right}});
  JsonWriter json;
  open_document(json, "stats");
  json.key("tensors").open_list();
  std::size_t unsound = 0;
  const std::size_t shown = shown_of(view, view.tensors.size(), view.tensors.size());
  for (std::size_t i = 0; i < shown; ++i) {
    const TensorEntry& tensor = *view.tensors[i];
    EBB_TRY(prove_coverage(tensor, view.catalog()));
    EBB_TRY_ASSIGN(const auto found,
                   formats::statistics_of(view.checkpoint, tensor, view.selection.rank));
    if (found && found->nans + found->infinities != 0) ++unsound;
    if (view.output == Output::json)
      write_statistics(json, tensor, found);
    else
      table.add(cells_of(tensor, found));
  }
  json.close_list().key("with_nan_or_infinity").number(unsound).close_object();
  if (view.output == Output::json) {
    console.print(json.take());
    return Exit::success;
  }
  std::string out = table.text();
  if (shown < view.tensors.size())
    out += "  ... " + count_text(view.tensors.size() - shown) + " more\n";
  out += unsound == 0 ? "  no NaN, no infinity\n"
                      : "  " + console.bad(plural(unsound, "tensor")) + " with NaN or infinities\n";
  console.print(out);
  return Exit::success;
}

}  // namespace ebb::tools::inspect
