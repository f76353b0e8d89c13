#include "formats/deepspeed/partition.h"

namespace formats {
namespace {

constexpr std::uint64_t kNcclAlign = 2;  // stages 1 and 2: partitions hold whole pairs of elements

Chunk chunk_of(const DsFlat& flat, Box box, std::uint64_t first_elem, Rank rank) {
  const std::uint64_t width = bytes_of(flat.dtype);
  const std::uint64_t bytes = volume(box.extent) * width;
  return {std::move(box), flat.file, flat.at + first_elem * width,
          bytes,          rank,      std::uint64_t{flat.record} * 2};
}

}  // namespace

Result<DsGroup> DsGroup::make(std::vector<DsParam> params, Policy policy, std::uint32_t world) {
  Layout::Spec spec;
  spec.policy = policy;
  spec.mesh.shard_world = world;
  spec.align_elems = policy == Policy::zero12 ? kNcclAlign : 1;
  std::vector<Shape> shapes;
  for (const DsParam& param : params) shapes.push_back(param.shape);
  TRY_ASSIGN(Layout layout, Layout::make(std::move(spec), std::move(shapes)));
  return DsGroup(std::move(params), std::move(layout));
}

std::uint64_t DsGroup::touched_elems(Rank rank) const {
  std::uint64_t elems = 0;
  for (std::size_t t = 0; t < params_.size(); ++t)
    if (!params_[t].name.empty() && layout_.local_elems(t, rank) > 0)
      elems += volume(params_[t].shape);
  return elems;
}

Result<TensorEntry*> DsPartitions::entry(const std::string& name, const std::string& state,
                                         DType dtype, const Shape& shape,
                                         const std::string& where) {
  std::vector<TensorEntry>& tensors = checkpoint_.building().tensors;
  const auto [place, fresh] = numbers_.try_emplace({name, state}, tensors.size());
  if (fresh) tensors.push_back({std::nullopt, {}, name, state, dtype, shape, {}});
  TensorEntry& tensor = tensors[place->second];
  if (tensor.dtype == dtype && tensor.shape == shape) return &tensor;
  return Error{Code::layout,
               where + ": " + name + " " + state + " is " + std::string(name_of(dtype)) + " " +
                   to_string(shape) + " here and " + std::string(name_of(tensor.dtype)) + " " +
                   to_string(tensor.shape) + " elsewhere",
               {}};
}

Result<> DsPartitions::add(const DsGroup& group, const std::string& state, Rank rank,
                           const DsFlat& flat, const std::string& where) {
  const Layout& layout = group.layout();
  const std::uint64_t full = layout.buffer_elems(rank);
  const std::uint64_t lean = full - layout.padding_elems(rank);
  const bool whole_only = layout.spec().policy == Policy::zero3;
  if (flat.elems != full && (whole_only || flat.elems != lean))
    return Error{Code::layout,
                 where + ": " + state + " has " + std::to_string(flat.elems) +
                     " elements, but the parameters of the group take " + std::to_string(full) +
                     (whole_only ? "" : " (" + std::to_string(lean) + " without padding)"),
                 {}};
  for (std::size_t t = 0; t < group.params().size(); ++t) {
    const DsParam& param = group.params()[t];
    if (param.name.empty()) continue;
    TRY_ASSIGN(TensorEntry * tensor, entry(param.name, state, flat.dtype, param.shape, where));
    for (Piece& piece : layout.pieces(t, rank))
      tensor->chunks.push_back(chunk_of(flat, std::move(piece.box),
                                        layout.buffer_first(t, rank) + piece.local_first, rank));
  }
  return {};
}

Result<> DsPartitions::add_touched(const DsGroup& group, const std::string& state, Rank rank,
                                   const DsFlat& flat, const std::string& where) {
  CHECK(flat.elems == group.touched_elems(rank));
  std::uint64_t first = 0;
  for (std::size_t t = 0; t < group.params().size(); ++t) {
    const DsParam& param = group.params()[t];
    if (param.name.empty() || group.layout().local_elems(t, rank) == 0) continue;
    TRY_ASSIGN(TensorEntry * tensor, entry(param.name, state, flat.dtype, param.shape, where));
    if (tensor->chunks.empty())
      tensor->chunks.push_back(chunk_of(flat, whole(param.shape), first, rank));
    first += volume(param.shape);
  }
  return {};
}

Result<> DsPartitions::add_module(const std::string& name, const std::string& state, Rank rank,
                                  const DsFlat& flat, const std::string& where) {
  TRY_ASSIGN(TensorEntry * tensor, entry(name, state, flat.dtype, flat.shape, where));
  tensor->key = "module." + name;
  if (tensor->chunks.empty() && volume(flat.shape) > 0)
    tensor->chunks.push_back(chunk_of(flat, whole(flat.shape), 0, rank));
  return {};
}

}  // namespace formats
