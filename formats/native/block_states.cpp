#include "ebb/formats/native/block_states.h"

#include <algorithm>
#include <cstring>

#include "ebb/formats/core/check.h"
#include "ebb/formats/core/int8_blocks.h"
#include "ebb/formats/elements/box_reader.h"
#include "ebb/formats/native/manifest.h"

namespace ebb::formats::native {
namespace {

// Of its chunks, which are all encoded alike; 0: they are the elements themselves.
std::uint32_t encoding_of(const TensorEntry& tensor) {
  return tensor.chunks.empty() ? 0 : native::encoding_of(tensor.chunks.front());
}

Result<> check_scales(const TensorEntry& codes, const TensorEntry& scales, const Catalog& files) {
  const Shape wanted = {div_ceil(volume(codes.shape), block_of(encoding_of(codes)))};
  if (scales.dtype != DType::f32 || scales.shape != wanted || encoding_of(scales) != 0)
    return Error{
        Code::corrupt,
        compose("{}: its scales are {} of shape {}, where F32 of shape {} belong", label_of(codes),
                name_of(scales.dtype), to_string(scales.shape), to_string(wanted))};
  return prove_coverage(scales, files);
}

}  // namespace

Result<BlockStates> BlockStates::take(std::vector<TensorEntry>& tensors, const Catalog& files) {
  BlockStates states;
  for (TensorEntry& tensor : tensors)
    if (encoding_of(tensor) != 0) {
      tensor.stored = std::exchange(tensor.dtype, DType::f32);
      states.scales_.try_emplace({tensor.name, tensor.state + std::string(kScaleOf)});
    }
  const auto taken = [&](const TensorEntry& tensor) {
    const auto wanted = states.scales_.find({tensor.name, tensor.state});
    if (wanted == states.scales_.end()) return false;
    wanted->second = tensor;
    return true;
  };
  std::erase_if(tensors, taken);
  for (const TensorEntry& tensor : tensors)
    if (encoding_of(tensor) != 0) EBB_TRY(check_scales(tensor, states.scales_of(tensor), files));
  return states;
}

const TensorEntry& BlockStates::scales_of(const TensorEntry& tensor) const {
  const auto found = scales_.find({tensor.name, tensor.state + std::string(kScaleOf)});
  EBB_CHECK(found != scales_.end());
  return found->second;
}

Result<> BlockStates::read(const Checkpoint& checkpoint, const TensorEntry& tensor,
                           const Chunk& chunk, std::uint64_t first, std::span<std::byte> into,
                           const Codes& codes) const {
  const std::uint64_t block = block_of(native::encoding_of(chunk));
  const auto placed = flat_range_of(tensor.shape, chunk.box);
  EBB_CHECK(placed.has_value());  // chunks are made of runs of elements
  // Whole elements around what is wanted.
  const std::uint64_t begin = first / sizeof(float);
  const std::uint64_t count = div_ceil(first + into.size(), sizeof(float)) - begin;
  const std::uint64_t element = placed->first + begin;
  std::vector<std::int8_t> stored(count);
  EBB_TRY(codes(begin, std::as_writable_bytes(std::span(stored))));
  const std::uint64_t first_block = element / block;
  std::vector<float> scales(div_ceil(element + count, block) - first_block);
  EBB_TRY(read_box(checkpoint, scales_of(tensor), {{first_block}, {scales.size()}},
                   std::as_writable_bytes(std::span(scales))));
  std::vector<float> values(count);
  from_int8_blocks(stored, scales, block, element % block, values);
  std::memcpy(into.data(), std::as_bytes(std::span(values)).data() + first % sizeof(float),
              into.size());
  return {};
}

}  // namespace ebb::formats::native
