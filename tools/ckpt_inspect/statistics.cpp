// --stats: one line a tensor, or a picture.
#include "ebb/formats/elements/statistics.h"

#include "ebb/formats/core/json_text.h"
#include "tools/ckpt_inspect/norms.h"
#include "tools/cli/text.h"
#include "tools/pictures/page.h"

namespace ebb::tools::inspect {

using formats::Statistics;

namespace {

std::string share_text(std::uint64_t part, std::uint64_t whole) {
  if (part == 0 || whole == 0) return "0 %";
  return significant(100 * static_cast<double>(part) / static_cast<double>(whole), 3) + " %";
}

void write_statistics(JsonWriter& json, const TensorEntry& tensor,
                      const std::optional<Statistics>& found) {
  write_identity(json, tensor);
  write_numbers(json.key("stats"), found);
  json.close_object();
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

Result<Exit> show_statistics(Console& console, const View& view,
                             const std::optional<std::string>& picture_file) {
  std::optional<NormsPicture> picture;
  if (picture_file) {
    EBB_TRY(pictures::picture_file(NormsPicture::kFlag, *picture_file, pictures::Kind::norms));
    picture.emplace(view);
  }
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
    EBB_TRY_ASSIGN(const auto found, formats::statistics_of(view.checkpoint, tensor,
                                                            {.holder = view.selection.rank}));
    if (picture) EBB_TRY(picture->add(tensor, found));
    if (found && found->nans + found->infinities != 0) ++unsound;
    if (view.output == Output::json)
      write_statistics(json, tensor, found);
    else
      table.add(cells_of(tensor, found));
  }
  json.close_list().put("with_nan_or_infinity", unsound);
  write_unread(json, view);
  std::string drawn;
  if (picture) {
    EBB_TRY_ASSIGN(const std::uint64_t bytes, picture->write(*picture_file));
    json.key("picture").open_object().put("file", *picture_file).put("bytes", bytes);
    json.close_object();
    drawn = compose("  norms: {}, {}\n", printable(*picture_file), bytes_text(bytes));
  }
  json.close_object();
  if (view.output == Output::json) {
    console.print(json.take());
    return Exit::success;
  }
  std::string out = picture ? drawn : table.text() + left_out(shown, view.tensors.size());
  out += unsound == 0 ? "  no NaN, no infinity\n"
                      : "  " + console.bad(plural(unsound, "tensor")) + " with NaN or infinities\n";
  console.print(out + unread_text(view));
  return Exit::success;
}

}  // namespace ebb::tools::inspect
