#include "ebb/formats/elements/box_reader.h"

#include <algorithm>
#include <memory>

#include "ebb/formats/core/check.h"
#include "ebb/formats/elements/fingerprint.h"

namespace ebb::formats {

namespace {

// Runs shorter than this are read together with what lies between them.
constexpr std::uint64_t kWorthItsOwnRead = std::uint64_t{256} << 10;

// `box` as seen from the corner of `frame`. REQUIRES: box inside frame.
Box within(const Box& box, const Box& frame) {
  Box relative = box;
  for (std::size_t d = 0; d < box.offset.size(); ++d) relative.offset[d] -= frame.offset[d];
  return relative;
}

}  // namespace

// One read(): its scratch memory and where it puts what it finds.
class BoxReader::Gather {
 public:
  Gather(const BoxReader& reader, const Box& box, std::span<std::byte> into, ReadProof* came)
      : reader_(reader), box_(box), into_(into), came_(came) {}

  // Copies `region`, which lies inside both the chunk and the box.
  Result<> copy(const Chunk& chunk, const Box& region) {
    const std::uint64_t elem = reader_.elem_bytes_;
    std::size_t dim = 0;
    while (dim < region.extent.size() && region.extent[dim] == 1) ++dim;
    // What lies between the first and the last element of the region in the chunk.
    Box enclosing = region;
    for (std::size_t d = dim + 1; d < region.extent.size(); ++d) {
      enclosing.offset[d] = chunk.box.offset[d];
      enclosing.extent[d] = chunk.box.extent[d];
    }
    const std::uint64_t bytes = volume(enclosing.extent) * elem;
    if (dim == region.extent.size()) return copy_enclosed(chunk, region, enclosing);
    const std::uint64_t row = bytes / region.extent[dim];
    const std::uint64_t wanted_row = volume(region.extent) / region.extent[dim] * elem;
    const bool sparse = wanted_row < row && wanted_row >= kWorthItsOwnRead;
    if (bytes <= kMaxRun && !(sparse && region.extent[dim] > 1))
      return copy_enclosed(chunk, region, enclosing);
    const std::uint64_t rows = sparse ? 1 : std::max<std::uint64_t>(1, kMaxRun / row);
    const std::uint64_t end = region.offset[dim] + region.extent[dim];
    Box part = region;
    for (; part.offset[dim] < end; part.offset[dim] += rows) {
      part.extent[dim] = std::min(rows, end - part.offset[dim]);
      EBB_TRY(copy(chunk, part));
    }
    return {};
  }

  // Whether all of the box was read to where it is wanted.
  bool all_in_place() {
    std::ranges::sort(in_place_, {}, &FlatRange::first);
    std::uint64_t next = 0;
    for (const FlatRange& run : in_place_) {
      if (run.first != next) return false;
      next += run.count;
    }
    return next * reader_.elem_bytes_ == into_.size();
  }

 private:
  Result<> copy_enclosed(const Chunk& chunk, const Box& region, const Box& enclosing) {
    const std::uint64_t elem = reader_.elem_bytes_;
    const auto stored = flat_range_of(chunk.box.extent, within(enclosing, chunk.box));
    EBB_CHECK(stored.has_value());
    const auto placed = flat_range_of(box_.extent, within(region, box_));
    if (region == enclosing && placed) {
      const auto place = into_.subspan(placed->first * elem, placed->count * elem);
      EBB_TRY(reader_.read_chunk(chunk, stored->first * elem, place));
      count(chunk, *stored, region, place);
      if (same(*stored, chunk.box, region) && same(*placed, box_, region))
        in_place_.push_back(*placed);
      return {};
    }
    const std::uint64_t bytes = stored->count * elem;
    if (scratch_ == nullptr || scratch_bytes_ < bytes) {
      scratch_ = std::make_unique_for_overwrite<std::byte[]>(bytes);
      scratch_bytes_ = bytes;
    }
    const std::span<std::byte> found(scratch_.get(), bytes);
    EBB_TRY(reader_.read_chunk(chunk, stored->first * elem, found));
    count(chunk, *stored, region, found);
    copy_region(region, {enclosing, found}, {box_, into_}, reader_.elem_bytes_);
    return {};
  }

  // Where an element is follows from its position in the chunk alone, not from what was asked for.
  void count(const Chunk& chunk, FlatRange stored, const Box& region, ByteView found) {
    if (came_ == nullptr) return;
    for (Box& part : boxes_of(chunk.box.extent, stored)) {
      for (std::size_t d = 0; d < part.offset.size(); ++d) part.offset[d] += chunk.box.offset[d];
      const auto of_part = found.first(volume(part.extent) * reader_.elem_bytes_);
      if (const auto wanted = intersect(part, region))
        came_->fingerprint += formats::fingerprint(reader_.tensor_->shape, *wanted, {part, of_part},
                                                   reader_.elem_bytes_);
      found = found.subspan(of_part.size());
    }
  }

  // Whether these elements of `frame` are those of the region.
  static bool same(FlatRange elements, const Box& frame, const Box& region) {
    const std::vector<Box> boxes = boxes_of(frame.extent, elements);
    return boxes.size() == 1 && boxes.front() == within(region, frame);
  }

  const BoxReader& reader_;
  const Box& box_;
  std::span<std::byte> into_;
  ReadProof* came_;
  std::vector<FlatRange> in_place_;
  std::unique_ptr<std::byte[]> scratch_;
  std::uint64_t scratch_bytes_ = 0;
};

BoxReader::BoxReader(const Checkpoint& checkpoint, const TensorEntry& tensor)
    : checkpoint_(&checkpoint), tensor_(&tensor) {}

Result<BoxReader> BoxReader::open(const Checkpoint& checkpoint, const TensorEntry& tensor) {
  BoxReader reader(checkpoint, tensor);
  const auto elems = checked_volume(tensor.shape);
  if (!elems || !packed_bytes(tensor.dtype, *elems))
    return Error{Code::limit, compose("{}: shape {} has more than 2^64 bytes", label_of(tensor),
                                      to_string(tensor.shape))};
  reader.packed_ = bits_of(tensor.dtype) % 8 != 0;
  reader.elem_bytes_ = reader.packed_ ? 1 : bytes_of(tensor.dtype);
  for (const Chunk& chunk : tensor.chunks) {
    if (!inside(chunk.box, tensor.shape))
      return Error{Code::corrupt,
                   compose("{}: shard {} lies outside the tensor's shape {}", label_of(tensor),
                           to_string(chunk.box), to_string(tensor.shape))};
    if (volume(chunk.box.extent) != 0) reader.chunks_.push_back(&chunk);
  }
  reader.build_index();
  return reader;
}

void BoxReader::build_index() {
  std::size_t most = 0;
  std::vector<std::uint64_t> offsets(chunks_.size());
  for (std::size_t d = 0; d < tensor_->shape.size(); ++d) {
    for (std::size_t i = 0; i < chunks_.size(); ++i) offsets[i] = chunks_[i]->box.offset[d];
    std::ranges::sort(offsets);
    const auto repeated = std::ranges::unique(offsets);
    const auto distinct = static_cast<std::size_t>(repeated.begin() - offsets.begin());
    if (distinct <= most) continue;
    most = distinct;
    dim_ = d;
  }
  if (tensor_->shape.empty()) return;
  std::ranges::stable_sort(chunks_, [this](const Chunk* a, const Chunk* b) {
    return a->box.offset[dim_] < b->box.offset[dim_];
  });
  std::uint64_t furthest = 0;
  for (const Chunk* chunk : chunks_) {
    furthest = std::max(furthest, chunk->box.offset[dim_] + chunk->box.extent[dim_]);
    furthest_.push_back(furthest);
  }
}

// All chunks that may overlap the box: those that begin before its end, from the first on that
// reaches beyond its start.
std::span<const Chunk* const> BoxReader::candidates(const Box& box) const {
  if (tensor_->shape.empty()) return chunks_;
  const std::uint64_t first = box.offset[dim_];
  const std::uint64_t end = first + box.extent[dim_];
  const auto from = std::ranges::upper_bound(furthest_, first) - furthest_.begin();
  const auto to = std::ranges::partition_point(
                      chunks_, [&](const Chunk* chunk) { return chunk->box.offset[dim_] < end; }) -
                  chunks_.begin();
  if (from >= to) return {};
  return std::span(chunks_).subspan(static_cast<std::size_t>(from),
                                    static_cast<std::size_t>(to - from));
}

Result<> BoxReader::read(const Box& box, std::span<std::byte> into, ReadProof* came) const {
  EBB_CHECK(inside(box, tensor_->shape));
  const std::uint64_t wanted = volume(box.extent);
  if (packed_)
    return Error{Code::unsupported,
                 compose("{}: elements of {}, smaller than a byte, are only read whole",
                         label_of(*tensor_), name_of(tensor_->dtype))};
  EBB_CHECK(into.size() == wanted * elem_bytes_);
  Gather gather(*this, box, into, came);
  std::uint64_t found = 0;
  for (const Chunk* chunk : candidates(box)) {
    const auto region = intersect(chunk->box, box);
    if (!region) continue;
    found += volume(region->extent);
    if (found > wanted)
      return Error{Code::corrupt, compose("{}: elements of {} are in more than one shard",
                                          label_of(*tensor_), to_string(*region))};
    EBB_TRY(gather.copy(*chunk, *region));
  }
  if (came != nullptr) came->in_place = gather.all_in_place();
  if (found == wanted) return {};
  return Error{Code::incomplete,
               compose("{}: {} of the {} elements of {} are in no shard", label_of(*tensor_),
                       wanted - found, wanted, to_string(box))};
}

const Chunk* BoxReader::chunk_of(const Box& box) const {
  for (const Chunk* chunk : candidates(box))
    if (chunk->box == box) return chunk;
  return nullptr;
}

const Chunk* BoxReader::chunk_with(const Box& box) const {
  for (const Chunk* chunk : candidates(box))
    if (intersect(chunk->box, box)) return chunk;
  return nullptr;
}

Result<> BoxReader::read_chunk(const Chunk& chunk, std::uint64_t first,
                               std::span<std::byte> into) const {
  while (!into.empty()) {
    const std::size_t run = std::min<std::size_t>(into.size(), kMaxRun);
    EBB_TRY(checkpoint_->read(*tensor_, chunk, first, into.first(run)));
    first += run;
    into = into.subspan(run);
  }
  return {};
}

Result<> read_box(const Checkpoint& checkpoint, const TensorEntry& tensor, const Box& box,
                  std::span<std::byte> into) {
  EBB_TRY_ASSIGN(const BoxReader reader, BoxReader::open(checkpoint, tensor));
  return reader.read(box, into);
}

Result<BoxStream> BoxStream::open(const BoxReader& reader, Box box, Fingerprint wanted) {
  const TensorEntry& tensor = reader.tensor();
  EBB_CHECK(inside(box, tensor.shape));
  const auto size = packed_bytes(tensor.dtype, volume(box.extent));
  EBB_CHECK(size.has_value());
  BoxStream stream(reader, std::move(box), *size, wanted);
  if (!reader.packed() || *size == 0) return stream;
  stream.chunk_ = reader.chunk_of(stream.box_);
  if (stream.chunk_ == nullptr)
    return Error{Code::unsupported,
                 compose("{}: {} of {} elements, smaller than a byte, is not stored in one piece",
                         label_of(tensor), to_string(stream.box_), name_of(tensor.dtype))};
  return stream;
}

Result<> BoxStream::read(std::span<std::byte> into) {
  EBB_CHECK(into.size() <= bytes_left());
  const std::uint64_t elem = reader_->elem_bytes();
  while (!into.empty()) {
    const std::uint64_t into_element = next_ % elem;
    if (into_element == 0 && into.size() >= elem) {
      const std::size_t bytes = into.size() - into.size() % elem;
      EBB_TRY(read_elements(next_ / elem, into.first(bytes)));
      next_ += bytes;
      into = into.subspan(bytes);
      continue;
    }
    if (into_element == 0) EBB_TRY(read_elements(next_ / elem, std::span(element_).first(elem)));
    const std::size_t bytes = std::min<std::size_t>(into.size(), elem - into_element);
    std::copy_n(element_.begin() + static_cast<std::ptrdiff_t>(into_element), bytes, into.begin());
    next_ += bytes;
    into = into.subspan(bytes);
  }
  return {};
}

void BoxStream::seek(std::uint64_t byte) {
  EBB_CHECK(byte <= size_ && byte % reader_->elem_bytes() == 0);
  next_ = byte;
}

Result<> BoxStream::read_part(const Box& part, std::span<std::byte> into) {
  if (wanted_ == Fingerprint::none) return reader_->read(part, into);
  ReadProof came;
  EBB_TRY(reader_->read(part, into, &came));
  fingerprint_ += came.fingerprint;
  if (came.in_place) return {};
  const TensorEntry& tensor = reader_->tensor();
  const std::uint64_t put = formats::fingerprint(tensor.shape, part, into, reader_->elem_bytes());
  if (came.fingerprint != put)
    return Error{Code::corrupt,
                 compose("{}: what was gathered of {} is not what the source holds",
                         label_of(tensor), to_string(part)),
                 "try again; if it happens again, the memory is at fault"};
  return {};
}

Result<> BoxStream::read_elements(std::uint64_t first, std::span<std::byte> into) {
  const std::uint32_t elem = reader_->elem_bytes();
  if (chunk_ != nullptr) {
    EBB_TRY(reader_->read_chunk(*chunk_, first, into));
    if (wanted_ == Fingerprint::checked) fingerprint_ += formats::fingerprint(first, into, elem);
    return {};
  }
  for (Box& part : boxes_of(box_.extent, {first, into.size() / elem})) {
    for (std::size_t d = 0; d < part.offset.size(); ++d) part.offset[d] += box_.offset[d];
    const std::span<std::byte> bytes = into.first(volume(part.extent) * elem);
    EBB_TRY(read_part(part, bytes));
    into = into.subspan(bytes.size());
  }
  return {};
}

}  // namespace ebb::formats
