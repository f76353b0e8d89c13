#include "ebb/formats/hdf5/storage.h"

#include <algorithm>

#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/units.h"
#include "ebb/formats/hdf5/filters.h"

namespace ebb::formats::hdf5 {
namespace {

Error bad(Code code, const Dataset& dataset, const std::string& why) {
  return {code, printable(dataset.path) + ": " + why};
}

std::string needs(const Dataset& dataset, std::uint64_t bytes) {
  return compose("shape {} needs {} bytes", to_string(dataset.shape), bytes);
}

Result<> check_inside(const Dataset& dataset, std::uint64_t address, std::uint64_t bytes,
                      std::uint64_t file_bytes) {
  if (address <= file_bytes && bytes <= file_bytes - address) return {};
  return bad(
      Code::corrupt, dataset,
      compose("{} bytes at {} lie beyond the end of the file, {}", bytes, address, file_bytes));
}

std::uint64_t cells_of(const Dataset& dataset, std::size_t dim) {
  return div_ceil(dataset.shape[dim], dataset.chunk[dim]);
}

Result<std::uint64_t> chunk_bytes(const Dataset& dataset, std::uint32_t elem_bytes) {
  if (dataset.chunk.size() != dataset.shape.size() ||
      std::find(dataset.chunk.begin(), dataset.chunk.end(), 0u) != dataset.chunk.end())
    return bad(Code::corrupt, dataset,
               compose("chunks of shape {} in a dataset of shape {}", to_string(dataset.chunk),
                       to_string(dataset.shape)));
  const auto elems = checked_volume(dataset.chunk);
  const auto bytes = elems ? checked_mul(*elems, elem_bytes) : std::nullopt;
  if (!bytes || *bytes > kMaxChunkBytes)
    return bad(Code::limit, dataset,
               compose("a chunk of shape {}; the limit is {} bytes", to_string(dataset.chunk),
                       kMaxChunkBytes));
  return *bytes;
}

// Chunks that share bytes would let a small file stand for any amount of data.
Result<> check_apart(const Dataset& dataset) {
  std::vector<const StoredChunk*> order;
  for (const StoredChunk& chunk : dataset.chunks) order.push_back(&chunk);
  std::sort(order.begin(), order.end(),
            [](const auto* a, const auto* b) { return a->address < b->address; });
  for (std::size_t i = 1; i < order.size(); ++i)
    if (order[i]->address - order[i - 1]->address < order[i - 1]->bytes)
      return bad(Code::corrupt, dataset,
                 compose("two chunks overlap in the file at {}", order[i]->address));
  return {};
}

Result<> check_chunks(const Dataset& dataset, std::uint32_t elem_bytes, std::uint64_t needed,
                      std::uint64_t file_bytes) {
  EBB_TRY_ASSIGN(const std::uint64_t plain, chunk_bytes(dataset, elem_bytes));
  EBB_TRY(check_filters(dataset.filters, printable(dataset.path)));
  std::optional<std::uint64_t> cells = 1;
  for (std::size_t d = 0; d < dataset.shape.size() && cells; ++d)
    cells = checked_mul(*cells, cells_of(dataset, d));
  if (!cells || dataset.chunks.size() != *cells)
    return bad(Code::incomplete, dataset,
               compose("{}, but the file has no such data: it stores {} of its {} chunks",
                       needs(dataset, needed), dataset.chunks_stored,
                       (cells ? std::to_string(*cells) : std::string("more than 2^64"))));
  for (const StoredChunk& chunk : dataset.chunks) {
    EBB_TRY(check_inside(dataset, chunk.address, chunk.bytes, file_bytes));
    if (dataset.filters.empty() ? chunk.bytes != plain : chunk.bytes > plain + plain / 8 + 4096)
      return bad(Code::corrupt, dataset,
                 compose("the chunk at {} has {} bytes where a plain one has {}", chunk.address,
                         chunk.bytes, plain));
  }
  return check_apart(dataset);
}

// Calls visit(cell number, box of the cell inside the dataset) for the chunks that overlap `box`.
template <typename Visit>
void for_each_cell(const Dataset& dataset, const Box& box, Visit visit) {
  const std::size_t dims = dataset.shape.size();
  Shape first(dims), end(dims);
  for (std::size_t d = 0; d < dims; ++d) {
    first[d] = box.offset[d] / dataset.chunk[d];
    end[d] = div_ceil(box.offset[d] + box.extent[d], dataset.chunk[d]);
  }
  Shape at = first;
  for (std::size_t d = 1; d > 0;) {
    std::uint64_t number = 0;
    Box cell = whole(dataset.shape);
    for (std::size_t i = 0; i < dims; ++i) {
      number = number * cells_of(dataset, i) + at[i];
      cell.offset[i] = at[i] * dataset.chunk[i];
      cell.extent[i] = std::min(dataset.chunk[i], dataset.shape[i] - cell.offset[i]);
    }
    visit(number, std::move(cell));
    for (d = dims; d > 0 && ++at[d - 1] == end[d - 1]; --d) at[d - 1] = first[d - 1];
  }
}

void swap_units(std::span<std::byte> bytes, std::size_t unit) {
  if (unit <= 1) return;
  for (std::size_t at = 0; at + unit <= bytes.size(); at += unit)
    std::reverse(bytes.begin() + static_cast<std::ptrdiff_t>(at),
                 bytes.begin() + static_cast<std::ptrdiff_t>(at + unit));
}

// Calls read(first element in the dense array, bytes) for the runs that elements `range` of the
// part consist of.
template <typename Read>
Result<> in_runs(const Place& place, FlatRange range, std::uint32_t elem_bytes,
                 std::span<std::byte> into, Read read) {
  Result<> done;
  for (Box& box : boxes_of(place.part.extent, range)) {
    for (std::size_t d = 0; d < box.offset.size(); ++d) box.offset[d] += place.part.offset[d];
    for_each_run(place.dense, box, [&](FlatRange run) {
      if (!done) return;
      done = read(run.first, into.first(static_cast<std::size_t>(run.count * elem_bytes)));
      into = into.subspan(static_cast<std::size_t>(run.count * elem_bytes));
    });
    if (!done) break;
  }
  return done;
}

// The bytes of a chunk with filters, or of a compact dataset. A chunk of one dataset is decoded in
// one way; two datasets could both claim it.
Result<std::shared_ptr<const ByteVector>> whole_bytes(const SourceTree& tree,
                                                      const ByteSource& file, const Coding& coding,
                                                      const Place& place) {
  if (coding.compact) return std::shared_ptr<const ByteVector>(&coding.content, [](auto*) {});
  const std::string at = compose("{}:{}", file.name(), place.address);
  const std::uint64_t bytes = volume(place.dense) * coding.elem_bytes;
  const auto make = [&]() -> Result<SourceTree::Decoded> {
    ByteVector stored(static_cast<std::size_t>(place.bytes));
    EBB_TRY(file.read(place.address, stored));
    EBB_TRY_ASSIGN(ByteVector decoded,
                   undo_filters(coding.filters, place.skipped, coding.elem_bytes, std::move(stored),
                                bytes, at + ": chunk of " + printable(coding.path)));
    return SourceTree::Decoded(std::make_shared<const ByteVector>(std::move(decoded)));
  };
  EBB_TRY_ASSIGN(const SourceTree::Decoded chunk,
                 tree.decoded(compose("{} of {}", at, place.coding), bytes, make));
  return std::static_pointer_cast<const ByteVector>(chunk);
}

Result<> read_elements(const SourceTree& tree, const ByteSource& file, const Coding& coding,
                       const Place& place, FlatRange range, std::span<std::byte> into) {
  const std::uint32_t width = coding.elem_bytes;
  const bool plain = coding.filters.empty() && !coding.compact;
  if (plain) {
    EBB_TRY(in_runs(place, range, width, into, [&](std::uint64_t first, std::span<std::byte> run) {
      return file.read(place.address + first * width, run);
    }));
  } else {
    EBB_TRY_ASSIGN(const std::shared_ptr<const ByteVector> bytes,
                   whole_bytes(tree, file, coding, place));
    EBB_TRY(in_runs(place, range, width, into,
                    [&](std::uint64_t first, std::span<std::byte> run) -> Result<> {
                      std::copy_n(bytes->begin() + static_cast<std::ptrdiff_t>(first * width),
                                  run.size(), run.begin());
                      return {};
                    }));
  }
  swap_units(into, coding.elements.swap);
  return {};
}

}  // namespace

Result<std::uint64_t> plain_bytes(const Dataset& dataset, std::uint32_t elem_bytes) {
  const auto elems = checked_volume(dataset.shape);
  const auto bytes = elems ? checked_mul(*elems, elem_bytes) : std::nullopt;
  if (bytes) return *bytes;
  return bad(Code::limit, dataset,
             "shape " + to_string(dataset.shape) + " needs more bytes than 64 bits count");
}

Result<> check_storage(const Dataset& dataset, std::uint32_t elem_bytes, std::uint64_t file_bytes) {
  EBB_TRY_ASSIGN(const std::uint64_t bytes, plain_bytes(dataset, elem_bytes));
  if (bytes == 0) return {};
  switch (dataset.layout) {
    case Dataset::Layout::compact:
      if (dataset.content.size() == bytes) return {};
      return bad(
          Code::corrupt, dataset,
          compose("{}, but its header holds {}", needs(dataset, bytes), dataset.content.size()));
    case Dataset::Layout::contiguous:
      if (dataset.address == kNowhere)
        return bad(Code::incomplete, dataset,
                   needs(dataset, bytes) +
                       ", but nothing was ever written (the library alone would read the fill "
                       "value)");
      if (dataset.stored != bytes)
        return bad(
            Code::corrupt, dataset,
            compose("{}, but the file keeps {} for it", needs(dataset, bytes), dataset.stored));
      return check_inside(dataset, dataset.address, bytes, file_bytes);
    case Dataset::Layout::chunked:
      return check_chunks(dataset, elem_bytes, bytes, file_bytes);
    case Dataset::Layout::mapped:
      return {};
  }
  check_failed("a known layout", __FILE__, __LINE__);
}

std::vector<Stored> stored_pieces(const Dataset& dataset, std::uint32_t elem_bytes, const Box& box,
                                  std::uint64_t base) {
  if (dataset.layout != Dataset::Layout::chunked)
    return {{base + dataset.address, volume(dataset.shape) * elem_bytes, 0, whole(dataset.shape),
             dataset.shape}};
  std::vector<Stored> pieces;
  for_each_cell(dataset, box, [&](std::uint64_t number, Box cell) {
    const StoredChunk& chunk = dataset.chunks[static_cast<std::size_t>(number)];
    pieces.push_back(
        {base + chunk.address, chunk.bytes, chunk.skipped, std::move(cell), dataset.chunk});
  });
  return pieces;
}

Result<> read_place(const SourceTree& tree, const ByteSource& file, const Coding& coding,
                    const Place& place, std::uint64_t first, std::span<std::byte> into) {
  if (into.empty()) return {};
  const std::uint64_t width = coding.elem_bytes;
  const std::uint64_t begin = first / width;
  const std::uint64_t end = div_ceil(first + into.size(), width);
  const FlatRange range{begin, end - begin};
  if (first % width == 0 && into.size() % width == 0)
    return read_elements(tree, file, coding, place, range, into);
  ByteVector elements(static_cast<std::size_t>(range.count * width));
  EBB_TRY(read_elements(tree, file, coding, place, range, elements));
  std::copy_n(elements.begin() + static_cast<std::ptrdiff_t>(first % width), into.size(),
              into.begin());
  return {};
}

}  // namespace ebb::formats::hdf5
