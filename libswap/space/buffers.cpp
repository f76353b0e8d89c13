#include "ebb/libswap/space/buffers.h"

#include <algorithm>
#include <utility>

#include "ebb/formats/core/digest.h"
#include "ebb/formats/native/manifest_limits.h"
#include "ebb/formats/native/store_files.h"

namespace ebb::libswap {
namespace {

namespace native = formats::native;

std::string text_of(const BufferPart& part) { return compose("{} ({})", part.tensor, part.state); }

// Of a message: what all parts of a buffer are called.
std::string name_of_all(const std::vector<BufferPart>& parts) {
  std::string name = parts.front().tensor + " (" + parts.front().state;
  for (std::size_t i = 1; i < parts.size(); ++i)
    name += ", " + (parts[i].tensor == parts.front().tensor ? parts[i].state : text_of(parts[i]));
  return name + ")";
}

Result<> check(const BufferPart& part) {
  EBB_TRY(native::check_name("buffer", part.tensor));
  EBB_TRY(native::check_name("state", part.state));
  const std::string what = text_of(part);
  if (part.shape.size() > native::kMaxDimensions)
    return Error{Code::limit,
                 compose("{}: tensors have at most {} dimensions", what, native::kMaxDimensions)};
  if (!formats::dtype_numbered(static_cast<std::uint8_t>(part.dtype)))
    return Error{Code::usage, compose("{} has elements of no dtype: {}", what,
                                      static_cast<unsigned>(part.dtype))};
  if (formats::bits_of(part.dtype) % 8 != 0)
    return Error{Code::unsupported,
                 compose("{} has elements of {} bits; a store keeps whole bytes", what,
                         formats::bits_of(part.dtype)),
                 "register the packed bytes as U8"};
  const auto elems = formats::checked_volume(part.shape);
  if (!elems || *elems == 0 || !formats::packed_bytes(part.dtype, *elems))
    return Error{Code::layout, compose("{} has no elements, or too many: shape {}", what,
                                       formats::to_string(part.shape))};
  const auto end = formats::checked_add(part.range.first, part.range.count);
  if (!end || *end > *elems)
    return Error{Code::layout, compose("{}: elements {} to {} are not inside its {}", what,
                                       part.range.first, end.value_or(0), *elems)};
  return {};
}

}  // namespace

Result<> Buffers::add_tensor(const BufferPart& part) {
  EBB_TRY(check(part));
  if (!names_.emplace(part.tensor, part.state).second)
    return Error{Code::layout, text_of(part) + " is registered twice"};
  if (std::ranges::find(states_, part.state) != states_.end()) return {};
  if (states_.size() == native::kMaxStates)
    return Error{Code::limit, compose("{}: a store keeps at most {} different states",
                                      text_of(part), native::kMaxStates)};
  states_.push_back(part.state);
  return {};
}

Result<BufferId> Buffers::add(std::vector<BufferPart> parts) {
  if (parts.empty()) return Error{Code::usage, "a buffer has at least one part"};
  Buffer buffer;
  buffer.name = name_of_all(parts);
  for (BufferPart& part : parts) {
    EBB_TRY(add_tensor(part));
    const std::uint64_t bytes = part.range.count * formats::bytes_of(part.dtype);
    const std::uint64_t offset = formats::align_up(buffer.bytes, kAlignBytes);
    const auto end = formats::checked_add(offset, bytes);
    if (!end) return Error{Code::limit, buffer.name + " has more than 2^64 bytes"};
    buffer.parts.push_back({std::move(part), offset, bytes});
    if (bytes > 0) buffer.bytes = *end;
  }
  buffers_.push_back(std::move(buffer));
  return BufferId{static_cast<std::uint32_t>(buffers_.size() - 1)};
}

// A buffer that does not fit what is left of the shared tile begins the next one: neighbours are
// registered together because they are used together.
void Buffers::lay(std::uint64_t tile_bytes) {
  tile_bytes_ = tile_bytes;
  tiles_ = 0;
  extents_.clear();
  std::uint64_t shared_used = tile_bytes;  // of the last extent that is shared
  std::uint32_t shared = 0;
  for (std::uint32_t number = 0; number < buffers_.size(); ++number) {
    Buffer& buffer = buffers_[number];
    if (buffer.bytes == 0) continue;
    const std::uint64_t offset = formats::align_up(shared_used, kAlignBytes);
    if (offset <= tile_bytes && buffer.bytes <= tile_bytes - offset) {
      buffer.extent = shared;
      buffer.offset = offset;
      shared_used = offset + buffer.bytes;
    } else {
      buffer.extent = static_cast<std::uint32_t>(extents_.size());
      extents_.push_back({tiles_, formats::div_ceil(buffer.bytes, tile_bytes), {}});
      tiles_ += extents_.back().tiles;
      if (extents_.back().tiles == 1) {
        shared = buffer.extent;
        shared_used = buffer.bytes;
      }
    }
    extents_[buffer.extent].buffers.push_back(number);
  }
}

std::uint64_t Buffers::most_tiles() const {
  std::uint64_t most = 0;
  for (const Extent& extent : extents_) most = std::max(most, extent.tiles);
  return most;
}

// Tensors are numbered by name and shape: states of one shape share an entry, and entries of one
// name lie one behind the other.
Buffers::Numbers Buffers::numbers() const {
  std::vector<std::string> order;
  std::map<std::string, std::vector<const BufferPart*>> parts_of;
  for (const Buffer& buffer : buffers_)
    for (const Part& part : buffer.parts) {
      auto& parts = parts_of[part.described.tensor];
      if (parts.empty()) order.push_back(part.described.tensor);
      parts.push_back(&part.described);
    }
  Numbers numbers;
  for (const std::string& tensor : order) {
    std::map<Shape, std::uint32_t> of_shape;
    for (const BufferPart* part : parts_of[tensor]) {
      const auto next = static_cast<std::uint32_t>(numbers.params.size());
      const auto [known, fresh] = of_shape.try_emplace(part->shape, next);
      if (fresh) numbers.params.push_back({tensor, part->shape, native::kNoGroup});
      numbers.param_of[{tensor, part->state}] = known->second;
    }
  }
  return numbers;
}

std::uint32_t Buffers::state_of(const BufferPart& part) const {
  return static_cast<std::uint32_t>(std::ranges::find(states_, part.state) - states_.begin());
}

native::Manifest Buffers::manifest() const {
  Numbers numbers = this->numbers();
  native::Manifest manifest;
  manifest.states = states_;
  manifest.tiles.resize(tiles_);
  for (const Buffer& buffer : buffers_)
    for (const Part& part : buffer.parts) {
      native::Segment segment{
          .param = numbers.param_of[{part.described.tensor, part.described.state}],
          .state = state_of(part.described),
          .dtype = part.described.dtype,
          .first = part.described.range.first};
      std::uint64_t at = buffer.offset + part.offset;
      for (const std::uint64_t end = at + part.bytes; at < end;) {
        const std::uint64_t tile = at / tile_bytes_;
        const std::uint64_t stop = std::min(end, (tile + 1) * tile_bytes_);
        segment.offset = at - tile * tile_bytes_;
        segment.count = (stop - at) / formats::bytes_of(segment.dtype);
        native::Tile& entry = manifest.tiles[extents_[buffer.extent].first_tile + tile];
        entry.segments.push_back(segment);
        entry.used_bytes = stop - tile * tile_bytes_;
        segment.first += segment.count;
        at = stop;
      }
    }
  manifest.params = std::move(numbers.params);
  return manifest;
}

std::vector<Setting> Buffers::settings() const {
  std::vector<Setting> settings = {{"the number of buffers", std::to_string(buffers_.size())},
                                   {"the tile size", std::to_string(tile_bytes_)}};
  for (std::size_t i = 0; i < buffers_.size(); ++i)
    settings.push_back(
        {compose("the number of parts of buffer {}", i), std::to_string(buffers_[i].parts.size())});
  for (std::size_t i = 0; i < buffers_.size(); ++i)
    for (const Part& part : buffers_[i].parts)
      settings.push_back(
          {compose("buffer {}", i),
           compose("{} {} {}", text_of(part.described), formats::name_of(part.described.dtype),
                   formats::to_string(part.described.shape))});
  return settings;
}

std::uint64_t Buffers::digest() const {
  formats::Digest digest;
  for (const Setting& setting : settings()) {
    digest.add(setting.name);
    digest.add(setting.value);
  }
  return digest.value();
}

// A part [a, b) adds h(a) - h(b) to its tensor's sum, h a hash. If the shares of all ranks, put end
// to end, are the tensor, all of it cancels but h(0) - h(its end); if they are not, some border is
// left over.
Result<> Buffers::prove_shares(Ranks& ranks) const {
  const auto hash = [](std::uint64_t at) {
    formats::Digest digest;
    digest.add(at);
    return static_cast<std::int64_t>(digest.value() >> 20);  // 65,536 of them add up in 64 bits
  };
  std::vector<std::int64_t> sums;
  std::vector<const BufferPart*> parts;
  for (const Buffer& buffer : buffers_)
    for (const Part& part : buffer.parts) {
      const FlatRange& range = part.described.range;
      sums.push_back(hash(range.first) - hash(range.first + range.count));
      parts.push_back(&part.described);
    }
  EBB_TRY(ranks.sum(sums));
  for (std::size_t i = 0; i < parts.size(); ++i)
    if (sums[i] != hash(0) - hash(formats::volume(parts[i]->shape)))
      return Error{Code::layout,
                   compose("{}: the shares of the {} ranks are not the tensor, each element once",
                           text_of(*parts[i]), ranks.world()),
                   "register on each rank the range that this rank alone keeps"};
  return {};
}

}  // namespace ebb::libswap
