#include "ebb/formats/dcp/raw_items.h"

#include <algorithm>

#include "ebb/formats/catalog/value_json.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/refuse.h"

namespace ebb::formats::dcp {
namespace {

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
