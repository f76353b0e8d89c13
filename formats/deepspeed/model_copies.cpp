#include "ebb/formats/deepspeed/model_copies.h"

#include <algorithm>

#include "ebb/formats/core/float_cast.h"

namespace ebb::formats::deepspeed {
namespace {

constexpr std::uint64_t kLook = 256;  // elements that are compared

std::string look_of(DType dtype, const Shape& shape, ByteView elements) {
  return compose("{} {} ", name_of(dtype), to_string(shape)).append(text_of(elements));
}

}  // namespace

Result<> ModelCopies::read(std::uint32_t file, std::uint64_t at, std::span<std::byte> into) const {
  if (into.empty()) return {};
  EBB_TRY_ASSIGN(const auto source, tree_.open(catalog_.files[file].name));
  return source->read(at, into);
}

Result<ModelCopies> ModelCopies::open(const Catalog& catalog, const SourceTree& tree) {
  ModelCopies copies(catalog, tree);
  for (const TensorEntry& tensor : catalog.tensors)
    if (tensor.state == "param" && is_floating(tensor.dtype)) EBB_TRY(copies.add(tensor));
  return copies;
}

Result<> ModelCopies::add(const TensorEntry& param) {
  const std::uint64_t bytes = std::min(volume(param.shape), kLook) * bytes_of(param.dtype);
  ByteVector elements(bytes);
  if (bytes > 0) EBB_TRY(read(param.chunks.front().file, param.chunks.front().offset, elements));
  by_look_[look_of(param.dtype, param.shape, elements)].push_back(copies_.size());
  copies_.push_back({{param.name, param.shape}, false});
  const bool known = std::ranges::any_of(kinds_, [&](const Kind& kind) {
    return kind.dtype == param.dtype && kind.shape == param.shape;
  });
  if (!known) kinds_.push_back({param.dtype, param.shape});
  return {};
}

// Those not given yet that begin like these elements.
std::vector<std::size_t> ModelCopies::alike(const Kind& kind, const Flat& masters,
                                            ByteView elements) const {
  const std::uint64_t count = std::min(volume(kind.shape), kLook);
  ByteVector rounded(count * bytes_of(kind.dtype));
  cast_floats(masters.dtype, elements.first(count * bytes_of(masters.dtype)), kind.dtype, rounded);
  const auto found = by_look_.find(look_of(kind.dtype, kind.shape, rounded));
  std::vector<std::size_t> free;
  if (found != by_look_.end())
    std::ranges::copy_if(found->second, std::back_inserter(free),
                         [&](std::size_t copy) { return !copies_[copy].given; });
  return free;
}

Result<std::optional<Param>> ModelCopies::next(const Flat& masters, std::uint64_t first,
                                               Masters kept) {
  const std::uint64_t room = masters.elems - first;
  const std::uint64_t width = bytes_of(masters.dtype);
  ByteVector elements(std::min(room, kLook) * width);
  EBB_TRY(read(masters.file, masters.at + first * width, elements));
  std::vector<std::size_t> found;
  for (const Kind& kind : kinds_) {
    const std::uint64_t elems = volume(kind.shape);
    const bool fits =
        kept == Masters::whole ? kind.shape == masters.shape : elems > 0 && elems <= room;
    if (fits) std::ranges::copy(alike(kind, masters, elements), std::back_inserter(found));
  }
  if (found.empty()) return std::optional<Param>();
  Copy& copy = copies_[*std::ranges::min_element(found)];
  copy.given = true;
  by_order_ = by_order_ || found.size() > 1;
  return std::optional(copy.param);
}

Result<std::optional<Group>> ModelCopies::take(const Flat& masters, Masters kept) {
  Group params;
  if (!is_floating(masters.dtype)) return std::optional<Group>();
  std::uint64_t first = 0;
  do {
    EBB_TRY_ASSIGN(std::optional<Param> param, next(masters, first, kept));
    if (!param) return std::optional<Group>();
    first += volume(param->shape);
    params.push_back(*std::move(param));
  } while (first < masters.elems);
  return std::optional(std::move(params));
}

}  // namespace ebb::formats::deepspeed
