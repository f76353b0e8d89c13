#include "tools/ckpt_convert/plan_picture.h"

#include <algorithm>
#include <map>

#include "ebb/formats/core/json_text.h"
#include "ebb/formats/registry.h"
#include "tools/cli/rows_text.h"
#include "tools/cli/text.h"
#include "tools/pictures/page.h"
#include "tools/pictures/rows.h"

namespace ebb::tools::convert {
namespace {

using pictures::kMaxPieces;
using pictures::kNoLayer;

constexpr std::string_view kFlag = "--plan";

// A transfer, or several of them, of a strip of the picture.
struct Piece {
  std::uint32_t tensor = 0, place = 0, source = 0, target = 0;  // rows of their tables
  Rank from{};
  std::uint64_t source_offset = 0, target_offset = 0;
  std::uint64_t bytes = 0;
  std::size_t parts = 1;
};
using Strip = std::vector<Piece>;

// Everything that the page's script is given: see web/plan.js.
class Drawing {
 public:
  Drawing(const Prepared& prepared, const Transfers& transfers)
      : content_(prepared.conversion.content->catalog()), transfers_(transfers) {
    for (const Transfer& transfer : transfers.all) add(transfer);
    if (transfers.all.size() > kMaxPieces)
      for (auto& [at, strip] : strips_) strip = merged(strip, at.first);
  }

  std::string json() const;

 private:
  void add(const Transfer& transfer);
  Strip merged(const Strip& strip, const std::string& state);

  const Catalog& content_;
  const Transfers& transfers_;
  pictures::Rows tensors_, places_, files_;
  std::map<std::pair<std::string, Rank>, Strip> strips_;  // by state and rank of the result
};

void Drawing::add(const Transfer& transfer) {
  const TensorEntry& tensor = content_.tensors[transfer.tensor];
  const bool in_a_file = transfer.from->length > 0;
  Piece piece{.from = transfer.from->holder,
              .source_offset = transfer.from->offset,
              .target_offset = transfer.offset,
              .bytes = transfer.bytes};
  piece.tensor = tensor_in(tensors_, tensor.name, tensor.state, name_of(tensor.dtype),
                           formats::to_string(tensor.shape), kNoLayer);
  piece.place =
      place_in(places_, rows_text(transfer.region, tensor.shape), transfer.bytes, kNoLayer);
  piece.source = files_.number_of(json_string(
      in_a_file ? content_.files.at(transfer.from->file).name : "made by the conversion"));
  piece.target = files_.number_of(json_string(transfer.to->name));
  strips_[{tensor.state, transfer.to->writer}].push_back(piece);
}

Strip Drawing::merged(const Strip& strip, const std::string& state) {
  Strip out;
  for (const Piece& piece : strip) {
    const bool another = out.empty() || out.back().from != piece.from ||
                         out.back().source != piece.source || out.back().target != piece.target;
    if (another) {
      out.push_back(piece);
      continue;
    }
    out.back().bytes += piece.bytes;
    ++out.back().parts;
  }
  const std::uint32_t row = tensor_in(tensors_, "neighbours", state, "", "", kNoLayer);
  for (Piece& piece : out) {
    piece.tensor = row;
    piece.place = place_in(places_, plural(piece.parts, "piece"), piece.bytes, kNoLayer);
  }
  return out;
}

std::string Drawing::json() const {
  JsonWriter json;
  std::uint64_t fullest = 1;
  json.open_object().key("strips").open_list();
  for (const auto& [at, strip] : strips_) {
    std::uint64_t bytes = 0;
    pictures::Differences numbers;
    for (const Piece& piece : strip) {
      bytes += piece.bytes;
      numbers.add(piece.tensor, piece.place, index_of(piece.from), piece.source,
                  piece.source_offset, piece.target, piece.target_offset);
    }
    fullest = std::max(fullest, bytes);
    json.open_object().put("state", at.first).put("rank", at.second).put("bytes", bytes);
    json.key("numbers").raw(numbers.list()).close_object();
  }
  json.close_list().put("span", fullest).key("layers").open_list().close_list();
  tensors_.write(json.key("tensors"));
  places_.write(json.key("places"));
  files_.write(json.key("files"));
  json.key("flows").open_list();
  for (const auto& [flow, bytes] : transfers_.flows)
    json.open_list().value(flow.first).value(flow.second).number(bytes).close_list();
  json.close_list().close_object();
  return json.take();
}

std::string headline(const Transfers& transfers) {
  const std::uint64_t all = transfers.staying_bytes + transfers.moving_bytes;
  const double share =
      all == 0 ? 0 : 100 * static_cast<double>(transfers.moving_bytes) / static_cast<double>(all);
  return compose("{} of {} move between ranks ({} %); {} stay", bytes_text(transfers.moving_bytes),
                 bytes_text(all), decimal(share, 1), bytes_text(transfers.staying_bytes));
}

std::string largest_flow(const Transfers& transfers) {
  const std::pair<const Flow, std::uint64_t>* largest = nullptr;
  for (const auto& one : transfers.flows)
    if (one.first.first != one.first.second && (largest == nullptr || one.second > largest->second))
      largest = &one;
  if (largest == nullptr) return "nothing moves";
  return compose("most moves from rank {} to rank {}: {}", index_of(largest->first.first),
                 index_of(largest->first.second), bytes_text(largest->second));
}

pictures::Page page_of(const Request& request, const Prepared& prepared,
                       const Transfers& transfers) {
  const formats::Conversion& conversion = prepared.conversion;
  const Catalog& source = prepared.source->catalog();
  pictures::Page page{.subject = compose("{} → {}", request.source, request.destination),
                      .headline = headline(transfers),
                      .data = Drawing(prepared, transfers).json()};
  page.facts.push_back(compose("{}, {} → {}, {}, {}", source.format, plural(source.world, "rank"),
                               request.format->name(), plural(request.world, "rank"),
                               plural(prepared.files(), "file")));
  page.facts.push_back(largest_flow(transfers));
  if (conversion.plan.packing) page.facts.emplace_back("all sizes are before compression");
  page.facts.insert(page.facts.end(), conversion.changes.begin(), conversion.changes.end());
  for (const std::string& dropped : conversion.plan.dropped)
    page.warnings.push_back("drops " + dropped);
  return page;
}

}  // namespace

Result<> check_picture(const std::string& file) {
  EBB_TRY(pictures::picture_file(kFlag, file, pictures::Kind::conversion_plan));
  return {};
}

Result<PlanPicture> write_picture(const Request& request, const Prepared& prepared,
                                  const std::string& file) {
  constexpr auto kKind = pictures::Kind::conversion_plan;
  EBB_TRY_ASSIGN(const ResultFile result, pictures::picture_file(kFlag, file, kKind));
  PlanPicture picture{.file = file, .transfers = transfers_of(prepared.conversion)};
  EBB_TRY_ASSIGN(picture.bytes, pictures::write_page(
                                    result, kKind, page_of(request, prepared, picture.transfers)));
  return picture;
}

std::string picture_text(const PlanPicture& picture) {
  return compose("  {}: {}\n  picture {}, {}\n", headline(picture.transfers),
                 largest_flow(picture.transfers), printable(picture.file),
                 bytes_text(picture.bytes));
}

void write_transfers(JsonWriter& json, const PlanPicture& picture) {
  const Transfers& transfers = picture.transfers;
  json.key("plan").open_object().put("file", picture.file).put("bytes", picture.bytes);
  json.put("staying_bytes", transfers.staying_bytes).put("moving_bytes", transfers.moving_bytes);
  json.put("pieces", transfers.all.size()).key("flows").open_list();
  for (const auto& [flow, bytes] : transfers.flows) {
    json.open_object().put("from", flow.first).put("to", flow.second);
    json.put("bytes", bytes).close_object();
  }
  json.close_list().close_object();
}

}  // namespace ebb::tools::convert
