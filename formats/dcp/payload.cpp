#include "ebb/formats/dcp/payload.h"

#include <algorithm>

#include "ebb/formats/catalog/value_json.h"
#include "ebb/formats/core/decompress.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/refuse.h"
#include "ebb/formats/core/units.h"
#include "ebb/formats/pickle/known_globals.h"
#include "ebb/formats/torch/elements.h"
#include "ebb/formats/zip/record_check.h"

namespace ebb::formats::dcp {
namespace {

constexpr std::uint64_t kMaxValue = 256 * MiB;        // one BYTE_IO item, decoded
constexpr std::uint64_t kExpansion = 64;              // of a compressed value, at no charge
constexpr std::uint64_t kArchiveOverhead = 64 * KiB;  // what an archive of one tensor adds to it

constexpr std::uint64_t kReadAtOnce = 64 * KiB;  // of an item; longer ones are read in parts

// A file of which one item was read at once: parsing an archive looks at a dozen places in it.
class ItemAtOnce : public ByteSource {
 public:
  static Result<std::shared_ptr<const ByteSource>> of(std::shared_ptr<const ByteSource> file,
                                                      std::uint64_t first, std::uint64_t bytes) {
    EBB_TRY_ASSIGN(ByteVector item, read_bytes(*file, first, bytes, kReadAtOnce));
    return std::shared_ptr<const ByteSource>(
        std::make_shared<ItemAtOnce>(std::move(file), first, std::move(item)));
  }
  ItemAtOnce(std::shared_ptr<const ByteSource> file, std::uint64_t first, ByteVector item)
      : file_(std::move(file)), first_(first), item_(std::move(item)) {}

  std::uint64_t size() const override { return file_->size(); }
  std::string_view name() const override { return file_->name(); }
  Result<> read(std::uint64_t offset, std::span<std::byte> into) const override {
    const bool held = offset >= first_ && offset - first_ <= item_.size() &&
                      into.size() <= item_.size() - (offset - first_);
    if (!held) return file_->read(offset, into);
    std::copy_n(item_.begin() + static_cast<std::ptrdiff_t>(offset - first_), into.size(),
                into.begin());
    return {};
  }

 private:
  std::shared_ptr<const ByteSource> file_;
  std::uint64_t first_;
  ByteVector item_;
};

// Out of an archive whose records lie as they are: any part, whatever the tensor's strides.
Result<> read_stored(const SourceTree& tree, const TorchArchive& archive, const TorchTensor& tensor,
                     const ZipEntry& record, std::uint64_t first, std::span<std::byte> into) {
  const ByteSource& source = archive.zip().source();
  EBB_TRY_ASSIGN(const std::uint64_t at, archive.zip().data_offset(record));
  const ByteOrder order = archive.big_endian() ? ByteOrder::big : ByteOrder::little;
  EBB_TRY(read_elements(source, at, tensor, order, first, into));
  if (!record.has_crc()) return {};
  const CheckedRecord checked{record.name, archive.zip().offset() + record.header_at, at,
                              record.size, record.crc};
  const bool last = first + into.size() == tensor.bytes();
  if (!tensor.row_major() || order != ByteOrder::little)
    return last ? check_record(source, checked) : Result<>();
  // The archive holds this tensor alone: what lies around it is nobody's.
  const std::uint64_t begin = tensor.first * bytes_of(tensor.dtype);
  const std::uint64_t end = begin + tensor.bytes();
  std::vector<FlatRange> gaps;
  if (first == 0 && begin > 0) gaps.push_back({0, begin});
  if (last && end < record.size) gaps.push_back({end, record.size - end});
  return check_part(tree, source, checked, begin + first, into, gaps);
}

constexpr const char* kPlacesKey = "DCP_SHARDING_INFO";

// A file's bytes from `first` on, as a file of their own.
class TailSource : public ByteSource {
 public:
  TailSource(std::shared_ptr<const ByteSource> source, std::uint64_t first)
      : source_(std::move(source)),
        first_(first),
        name_(compose("{}:{}", source_->name(), first)) {}
  std::uint64_t size() const override { return source_->size() - first_; }
  Result<> read(std::uint64_t offset, std::span<std::byte> into) const override {
    return source_->read(first_ + offset, into);
  }
  std::string_view name() const override { return name_; }

 private:
  std::shared_ptr<const ByteSource> source_;
  std::uint64_t first_;
  std::string name_;
};

// The item's tensor, or the part of it that is asked for.
Result<TorchTensor> tensor_in(const TorchArchive& archive, const std::string& part) {
  const PickleGraph& graph = archive.graph();
  EBB_TRY_ASSIGN(std::optional<TorchComposite> made, composite_of(graph, graph.root()));
  if (part.empty()) {
    if (made)  // not among what is read: a record may be missing
      for (const TorchComposite::Part& one : made->parts) EBB_TRY(archive.record_of(one.tensor));
    return torch_tensor(graph, graph.root());
  }
  if (made)
    for (TorchComposite::Part& one : made->parts)
      if (one.name == part) return std::move(one.tensor);
  return Error{Code::corrupt, compose("{}: no tensor with a part {}", graph.where(), part)};
}

bool lies_at(const Value& places, const std::string& key, const Box& box) {
  const Value* place = places.find(key);
  const Value* offsets = place == nullptr ? nullptr : place->find("saved_offsets");
  return offsets != nullptr &&
         std::equal(offsets->items.begin(), offsets->items.end(), box.offset.begin(),
                    box.offset.end(), [](const Value& saved, std::uint64_t wanted) {
                      return saved.kind == Value::Kind::integer && saved.integer >= 0 &&
                             static_cast<std::uint64_t>(saved.integer) == wanted;
                    });
}

}  // namespace

std::string Payloads::path_of(const PayloadPlace& place) const {
  return compose("{}/{}", tree_->root(), place.file);
}

Result<TorchArchive> Payloads::open(const PayloadPlace& place, std::uint64_t plain_bytes,
                                    std::uint64_t plain_limit, PickleLimits limits) const {
  EBB_TRY_ASSIGN(std::shared_ptr<const ByteSource> source, tree_->open(place.file));
  if (place.coding == 0) {
    const bool there = place.offset <= source->size() &&
                       place.length <= source->size() - place.offset;  // else it says so itself
    if (there && place.length <= kReadAtOnce) {
      EBB_TRY_ASSIGN(source, ItemAtOnce::of(std::move(source), place.offset, place.length));
    }
    return TorchArchive::open(std::move(source), place.offset, place.length, limits);
  }
  std::string where(source->name());
  where += ':';
  where += std::to_string(place.offset);
  // zstd never expands what it cannot compress by more than one part in 256, plus its headers.
  const std::uint64_t packed_limit = plain_limit + plain_limit / 128 + kArchiveOverhead;
  EBB_TRY_ASSIGN(ByteVector bytes, unzstd(*source, place.offset, place.length,
                                          plain_bytes + kArchiveOverhead, packed_limit, where));
  for (std::uint64_t pass = 1; pass < place.coding; ++pass) {
    EBB_TRY_ASSIGN(bytes, unzstd(bytes, packed_limit, where));
  }
  const std::uint64_t size = bytes.size();
  limits.nodes = std::min(limits.nodes, kMaxCompressedNodes);
  return TorchArchive::open(
      std::make_shared<MemorySource>(where + " (decompressed)", std::move(bytes)), 0, size, limits);
}

Result<> Payloads::read(const PayloadPlace& place, const Shape& shape, DType dtype,
                        std::string_view label, std::uint64_t first,
                        std::span<std::byte> into) const {
  auto done = place.coding == kRawItem ? read_raw(place, first, into)
                                       : read_tensor(place, shape, dtype, first, into);
  if (!done) return std::move(done).error().about(label);
  return {};
}

Result<Payloads::Opened> Payloads::open_tensor(const PayloadPlace& place, const Shape& shape,
                                               DType dtype) const {
  const std::uint64_t bytes = volume(shape) * bytes_of(dtype);
  EBB_TRY_ASSIGN(TorchArchive archive, open(place, bytes, bytes + kArchiveOverhead));
  EBB_TRY(require_known_globals(archive.graph()));
  EBB_TRY_ASSIGN(TorchTensor tensor, tensor_in(archive, place.part));
  if (tensor.shape != shape || tensor.dtype != dtype)
    return refuse(
        Code::corrupt, path_of(place), place.offset,
        compose(
            "the metadata declares {} of shape {} but the file holds a tensor of {} and shape {}",
            name_of(dtype), to_string(shape), name_of(tensor.dtype), to_string(tensor.shape)));
  EBB_TRY_ASSIGN(const ZipEntry* record, archive.record_of(tensor));
  return Opened{std::move(archive), std::move(tensor), record, std::nullopt};
}

Result<std::shared_ptr<const Payloads::Opened>> Payloads::decoded(const PayloadPlace& place,
                                                                  const Shape& shape,
                                                                  DType dtype) const {
  const auto make = [&]() -> Result<SourceTree::Decoded> {
    EBB_TRY_ASSIGN(Opened item, open_tensor(place, shape, dtype));
    if (item.record->deflated) {
      const std::uint64_t limit = item.tensor.bytes() + kArchiveOverhead;
      EBB_TRY_ASSIGN(item.elements,
                     item.archive.elements(item.tensor, std::max(limit, place.length)));
    }
    return SourceTree::Decoded(std::make_shared<const Opened>(std::move(item)));
  };
  const std::string key = compose("{}:{}:{}", place.file, place.offset, place.part);
  EBB_TRY_ASSIGN(const SourceTree::Decoded item,
                 tree_->decoded(key, volume(shape) * bytes_of(dtype), make));
  return std::static_pointer_cast<const Opened>(item);
}

Result<Payloads::Form> Payloads::form_of(const PayloadPlace& place) const {
  if (place.coding != 0) return Form();
  EBB_TRY_ASSIGN(const TorchArchive archive, open(place, 0, 0));
  const PickleGraph& graph = archive.graph();
  EBB_TRY_ASSIGN(std::optional<TorchComposite> made, composite_of(graph, graph.root()));
  if (made) {
    EBB_TRY_ASSIGN(CompositePiece piece, piece_in(archive, std::move(*made)));
    return Form(std::move(piece));
  }
  if (auto form = unread_form(graph, graph.root())) return Form(std::move(*form));
  return Form();
}

Result<CompositePiece> Payloads::piece_in(const TorchArchive& archive, TorchComposite made) {
  CompositePiece piece{whole(made.whole.shape), std::move(made), {}};
  for (const TorchComposite::Part& part : piece.made.parts) {
    EBB_TRY_ASSIGN(const ZipEntry* record, archive.record_of(part.tensor));
    EBB_TRY_ASSIGN(const std::uint64_t at, archive.zip().data_offset(*record));
    const bool plain = part.tensor.row_major() && !record->deflated;
    const std::uint64_t first = plain ? part.tensor.first * bytes_of(part.tensor.dtype) : 0;
    const Chunk chunk{.box = {},
                      .offset = at + first,
                      .length = plain ? part.tensor.bytes() : record->stored_size};
    piece.stored.push_back({chunk, record->crc});
  }
  return piece;
}

Result<> Payloads::read_tensor(const PayloadPlace& place, const Shape& shape, DType dtype,
                               std::uint64_t first, std::span<std::byte> into) const {
  if (place.coding == 0) {
    EBB_TRY_ASSIGN(const Opened item, open_tensor(place, shape, dtype));
    if (!item.record->deflated)
      return read_stored(*tree_, item.archive, item.tensor, *item.record, first, into);
  }
  EBB_TRY_ASSIGN(const std::shared_ptr<const Opened> item, decoded(place, shape, dtype));
  if (!item->elements)
    return read_stored(*tree_, item->archive, item->tensor, *item->record, first, into);
  std::copy_n(item->elements->begin() + static_cast<std::ptrdiff_t>(first), into.size(),
              into.begin());
  return {};
}

Result<> Payloads::read_raw(const PayloadPlace& place, std::uint64_t first,
                            std::span<std::byte> into) const {
  EBB_TRY_ASSIGN(const std::shared_ptr<const ByteSource> source, tree_->open(place.file));
  return source->read(place.offset + first, into);
}

Result<ReadablePart> Payloads::value(const PayloadPlace& place, std::uint64_t& budget) const {
  if (place.length > kMaxValue)
    return refuse(Code::limit, path_of(place), place.offset,
                  compose("a value of {} bytes; the limit is {}", place.length, kMaxValue));
  const std::uint64_t free = place.length * kExpansion;
  EBB_TRY_ASSIGN(const TorchArchive archive,
                 open(place, 0, std::min(kMaxValue, free + budget), {.unfold = budget}));
  EBB_TRY_ASSIGN(ReadablePart part,
                 readable_part_of(archive.graph(), archive.graph().root(), archive));
  std::vector<const Value*> shown;
  if (part.value) shown.push_back(&*part.value);
  EBB_TRY(refuse_hidden_calls(archive.graph(), shown));
  const std::uint64_t decoded = archive.length() - std::min(archive.length(), free);
  budget -= std::min(budget, decoded + archive.graph().unfolded());
  return part;
}

bool RawItems::is_raw(const StoredItem& item, DType dtype, const Box& box) {
  return item.zstd == 0 && item.length == volume(box.extent) * bytes_of(dtype);
}

Result<const RawItems::Tensors*> RawItems::tensors_at(const std::string& file,
                                                      std::uint64_t offset) {
  std::unique_ptr<Tensors>& tensors = read_[{file, offset}];
  if (tensors != nullptr) return tensors.get();
  EBB_TRY_ASSIGN(std::shared_ptr<const ByteSource> source, tree_->open(file));
  const TailSource tail(std::move(source), offset);
  auto made = std::make_unique<Tensors>();
  EBB_TRY_ASSIGN(made->header, safetensors::read_header(tail));
  const safetensors::MetadataText* places = made->header.find_metadata(kPlacesKey);
  if (places == nullptr)
    return refuse(Code::corrupt, tail.name(), 0,
                  std::string("the safetensors header has no ") + kPlacesKey);
  const std::string where = compose("{}: {}", tail.name(), kPlacesKey);
  EBB_TRY_ASSIGN(made->places, read_value_json(places->text, where));
  for (const safetensors::HeaderTensor& tensor : made->header.tensors)
    made->by_key.emplace(tensor.key, &tensor);
  tensors = std::move(made);
  return tensors.get();
}

Result<std::uint64_t> RawItems::offset_of(const std::string& file, const StoredItem& item,
                                          const std::string& key, DType dtype, const Box& box) {
  EBB_TRY_ASSIGN(const Tensors* tensors, tensors_at(file, item.offset));
  const std::string where = compose("{}/{}", tree_->root(), file);
  const auto found = tensors->by_key.find(key);
  if (found == tensors->by_key.end())
    return refuse(Code::incomplete, where, item.offset,
                  "the safetensors header has no tensor " + json_string(key));
  const safetensors::HeaderTensor& tensor = *found->second;
  if (!lies_at(tensors->places, key, box))
    return refuse(
        Code::incomplete, where, item.offset,
        compose("the chunk {} of tensor {} is not there: in this serialization torch keeps the "
                "last chunk that a rank writes of a tensor, and loses the others",
                to_string(box), json_string(key)));
  if (tensor.dtype != dtype || tensor.shape != box.extent)
    return refuse(
        Code::corrupt, where, item.offset,
        compose("the metadata declares {} of shape {} but the file holds {} as {} of shape {}",
                name_of(dtype), to_string(box.extent), json_string(key), name_of(tensor.dtype),
                to_string(tensor.shape)));
  return item.offset + tensors->header.data_start + tensor.begin;
}

}  // namespace ebb::formats::dcp
