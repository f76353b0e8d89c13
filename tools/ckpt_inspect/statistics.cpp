// --stats: one line a tensor.
#include "ebb/formats/elements/statistics.h"

#include "tools/ckpt_inspect/modes.h"
#include "tools/cli/text.h"

namespace ebb::tools::inspect {

using formats::Statistics;

namespace {

// No whole number of more digits than readers of JSON have in an integer.
std::string number_json(double value) {
  std::string text = shortest(value);
  if (text.size() > 15 && text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

std::string share_text(std::uint64_t part, std::uint64_t whole) {
  if (part == 0 || whole == 0) return "0 %";
  return significant(100 * static_cast<double>(part) / static_cast<double>(whole), 3) + " %";
}

void write_statistics(JsonWriter& json, const TensorEntry& tensor,
                      const std::optional<Statistics>& found) {
  write_identity(json, tensor);
  json.key("stats");
  if (!found) {
    json.null().close_object();
    return;
  }
  const auto finite = [&](std::string_view name, double value) {
    json.key(name).raw(found->finite() == 0 ? "null" : number_json(value));
  };
  json.open_object().put("numbers", found->numbers);
  finite("min", found->smallest);
  finite("max", found->largest);
  finite("mean", found->mean);
  finite("norm", found->norm);
  json.put("zeros", found->zeros).put("nans", found->nans);
  json.put("infinities", found->infinities).close_object().close_object();
}

std::vector<std::string> cells_of(const TensorEntry& tensor,
                                  const std::optional<Statistics>& found) {
  std::vector<std::string> cells = identity_cells(tensor);
  if (!found || found->finite() == 0) {
    cells.insert(cells.end(), 5, "-");
  } else {
    for (const double value : {found->smallest, found->largest, found->mean, found->norm})
      cells.push_back(significant(value, 5));
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
  json.close_list().put("with_nan_or_infinity", unsound);
  write_unread(json, view);
  json.close_object();
  if (view.output == Output::json) {
    console.print(json.take());
    return Exit::success;
  }
  std::string out = table.text() + left_out(shown, view.tensors.size());
  out += unsound == 0 ? "  no NaN, no infinity\n"
                      : "  " + console.bad(plural(unsound, "tensor")) + " with NaN or infinities\n";
  console.print(out + unread_text(view));
  return Exit::success;
}

}  // namespace ebb::tools::inspect
