#include "tools/ckpt_inspect/norms.h"

#include "ebb/formats/core/json_text.h"
#include "tools/cli/text.h"
#include "tools/pictures/page.h"

namespace ebb::tools::inspect {

using formats::Statistics;

namespace {

constexpr auto kKind = pictures::Kind::norms;

// No whole number of more digits than readers of JSON have in an integer.
std::string number_json(double value) {
  std::string text = shortest(value);
  if (text.size() > 15 && text.find_first_of(".e") == std::string::npos) text += ".0";
  return text;
}

}  // namespace

void write_numbers(JsonWriter& json, const std::optional<Statistics>& found) {
  if (!found) {
    json.null();
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
  json.put("infinities", found->infinities).close_object();
}

NormsPicture::NormsPicture(const View& view) : view_(view), layers_(view.tensors) {
  tensors_.open_list();
}

void NormsPicture::put(const TensorEntry& tensor, std::int64_t layer,
                       const std::optional<Statistics>& found) {
  tensors_.open_list().text(tensor.name).text(tensor.state).text(name_of(tensor.dtype));
  tensors_.text(formats::to_string(tensor.shape)).value(layer);
  write_numbers(tensors_, found);
  tensors_.close_list();
}

Result<> NormsPicture::add(const TensorEntry& tensor, const std::optional<Statistics>& found) {
  ++tensors_seen_;
  if (found && found->nans + found->infinities != 0) ++unsound_;
  if (found && found->finite() != 0 && found->norm > largest_) {
    largest_ = found->norm;
    largest_name_ = formats::label_of(tensor);
  }
  const std::uint64_t stacked = layers_.stacked_in(tensor);
  if (stacked == 0) put(tensor, layers_.of(tensor), found);
  for (std::uint64_t layer = 0; layer < stacked; ++layer) {
    Box box = formats::whole(tensor.shape);
    box.offset[0] = layer;
    box.extent[0] = 1;
    EBB_TRY_ASSIGN(const auto of_layer,
                   formats::statistics_of(view_.checkpoint, tensor,
                                          {view_.selection.rank, formats::FlatRange{layer, 1}}));
    put(tensor, layers_.of(tensor, box), of_layer);
  }
  return {};
}

std::string NormsPicture::headline() const {
  std::string sound =
      unsound_ == 0 ? "No NaN, no infinity in " + plural(tensors_seen_, "tensor")
                    : compose("{} of {} {} NaN or infinities", unsound_,
                              plural(tensors_seen_, "tensor"), unsound_ == 1 ? "has" : "have");
  if (largest_ < 0) return sound;
  return compose("{}; the largest norm is {}: {}", sound, significant(largest_, 4),
                 printable(largest_name_));
}

Result<std::uint64_t> NormsPicture::write(const std::string& file) {
  EBB_TRY_ASSIGN(const ResultFile result, pictures::picture_file(kFlag, file, kKind));
  const Catalog& catalog = view_.catalog();
  JsonWriter data;
  layers_.write(data.open_object().key("layers"));
  data.key("tensors").raw(tensors_.close_list().take()).close_object();
  pictures::Page page{.subject = view_.path, .headline = headline(), .data = data.take()};
  page.facts.push_back(
      compose("{}{}", catalog.format, catalog.step ? compose(" · step {}", *catalog.step) : ""));
  if (view_.selection.rank)
    page.facts.push_back(compose("only what rank {} wrote", index_of(*view_.selection.rank)));
  if (const std::string unread = unread_line(view_); !unread.empty())
    page.warnings.push_back(unread);
  return pictures::write_page(result, kKind, page);
}

}  // namespace ebb::tools::inspect
