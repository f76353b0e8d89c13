#include "ebb/formats/native/encoded_states.h"

#include <algorithm>
#include <cstring>

#include "ebb/formats/core/check.h"
#include "ebb/formats/core/halves.h"
#include "ebb/formats/core/int8_blocks.h"
#include "ebb/formats/elements/box_reader.h"
#include "ebb/formats/native/manifest.h"

namespace ebb::formats::native {
namespace {

// Of its chunks, which are all encoded alike; 0: they are the elements themselves.
std::uint32_t encoding_of(const TensorEntry& tensor) {
  return tensor.chunks.empty() ? 0 : native::encoding_of(tensor.chunks.front());
}

// What a state of that encoding has its other part in: of the same parameter.
std::string other_state(const TensorEntry& tensor) {
  if (encoding_of(tensor) == kLowHalves) return std::string(kHighHalves);
  return tensor.state + std::string(kScaleOf);
}

struct Form {
  std::string_view what;
  DType dtype = DType::f32;
  Shape shape;
};
Form other_form(const TensorEntry& tensor) {
  if (encoding_of(tensor) == kLowHalves) return {"its high halves", DType::bf16, tensor.shape};
  return {
      "its scales", DType::f32, {div_ceil(volume(tensor.shape), block_of(encoding_of(tensor)))}};
}

Result<> check_other(const TensorEntry& tensor, const TensorEntry& other, const Catalog& files) {
  const Form wanted = other_form(tensor);
  if (other.dtype != wanted.dtype || other.shape != wanted.shape || encoding_of(other) != 0)
    return Error{Code::corrupt,
                 compose("{}: {} are {} of shape {}, where {} of shape {} belong", label_of(tensor),
                         wanted.what, name_of(other.dtype), to_string(other.shape),
                         name_of(wanted.dtype), to_string(wanted.shape))};
  return prove_coverage(other, files);
}

// Elements [first, first + values.size()) of the row-major tensor.
template <typename T>
Result<> read_range(const Checkpoint& checkpoint, const TensorEntry& tensor, std::uint64_t first,
                    std::vector<T>& values) {
  auto bytes = std::as_writable_bytes(std::span(values));
  for (const Box& box : boxes_of(tensor.shape, {first, values.size()})) {
    const std::size_t some = volume(box.extent) * sizeof(T);
    EBB_TRY(read_box(checkpoint, tensor, box, bytes.first(some)));
    bytes = bytes.subspan(some);
  }
  return {};
}

}  // namespace

Result<EncodedStates> EncodedStates::take(std::vector<TensorEntry>& tensors, const Catalog& files) {
  EncodedStates states;
  for (TensorEntry& tensor : tensors)
    if (encoding_of(tensor) != 0) {
      tensor.stored = std::exchange(tensor.dtype, DType::f32);
      states.others_.try_emplace({tensor.name, other_state(tensor)});
    }
  const auto taken = [&](const TensorEntry& tensor) {
    const auto wanted = states.others_.find({tensor.name, tensor.state});
    if (wanted == states.others_.end()) return false;
    wanted->second = tensor;
    return true;
  };
  std::erase_if(tensors, taken);
  for (const TensorEntry& tensor : tensors)
    if (encoding_of(tensor) != 0) EBB_TRY(check_other(tensor, states.other_of(tensor), files));
  return states;
}

const TensorEntry& EncodedStates::other_of(const TensorEntry& tensor) const {
  const auto found = others_.find({tensor.name, other_state(tensor)});
  EBB_CHECK(found != others_.end());
  return found->second;
}

Result<> EncodedStates::read(const Checkpoint& checkpoint, const TensorEntry& tensor,
                             const Chunk& chunk, std::uint64_t first, std::span<std::byte> into,
                             const Stored& stored) const {
  const auto placed = flat_range_of(tensor.shape, chunk.box);
  EBB_CHECK(placed.has_value());  // chunks are made of runs of elements
  // Whole elements around what is wanted.
  const std::uint64_t begin = first / sizeof(float);
  const std::uint64_t count = div_ceil(first + into.size(), sizeof(float)) - begin;
  std::vector<float> values(count);
  const bool halves = native::encoding_of(chunk) == kLowHalves;
  EBB_TRY((halves ? join_halves(checkpoint, tensor, placed->first, begin, values, stored)
                  : scale_codes(checkpoint, tensor, placed->first, begin, values, stored)));
  std::memcpy(into.data(), std::as_bytes(std::span(values)).data() + first % sizeof(float),
              into.size());
  return {};
}

Result<> EncodedStates::scale_codes(const Checkpoint& checkpoint, const TensorEntry& tensor,
                                    std::uint64_t chunk_first, std::uint64_t begin,
                                    std::span<float> values, const Stored& stored) const {
  const std::uint64_t block = block_of(encoding_of(tensor));
  const std::uint64_t element = chunk_first + begin;
  std::vector<std::int8_t> codes(values.size());
  EBB_TRY(stored(begin, std::as_writable_bytes(std::span(codes))));
  const std::uint64_t first_block = element / block;
  std::vector<float> scales(div_ceil(element + values.size(), block) - first_block);
  EBB_TRY(read_range(checkpoint, other_of(tensor), first_block, scales));
  from_int8_blocks(codes, scales, block, element % block, values);
  return {};
}

Result<> EncodedStates::join_halves(const Checkpoint& checkpoint, const TensorEntry& tensor,
                                    std::uint64_t chunk_first, std::uint64_t begin,
                                    std::span<float> values, const Stored& stored) const {
  std::vector<std::uint16_t> low(values.size()), high(values.size());
  EBB_TRY(stored(begin * sizeof(std::uint16_t), std::as_writable_bytes(std::span(low))));
  EBB_TRY(read_range(checkpoint, other_of(tensor), chunk_first + begin, high));
  std::ranges::transform(high, low, values.begin(), joined);
  return {};
}

}  // namespace ebb::formats::native
