#include "tools/hdf5_reader/chunks.h"

#include <array>

#include "ebb/formats/core/units.h"
#include "tools/hdf5_reader/handle.h"

namespace ebb::hdf5_reader {

using formats::hdf5::Dataset;
using formats::hdf5::StoredChunk;

namespace {

// H5Dget_chunk_info walks the whole index for each chunk. A direct read of a chunk looks it up in
// logarithmic time and then reads one run of element data: the driver says which run, unread.
Result<StoredChunk> find_chunk(hid_t dataset, Bytes& bytes, const std::vector<hsize_t>& at,
                               const std::string& path) {
  StoredChunk chunk;
  std::array<std::byte, 64> untouched{};
  bytes.start_trace();
  const herr_t read =
      H5Dread_chunk(dataset, H5P_DEFAULT, at.data(), &chunk.skipped, untouched.data());
  const Bytes::Place place = bytes.end_trace();
  if (read < 0) return library_error(path);
  if (place.reads != 1)
    return Error{Code::unsupported, path + ": this libhdf5 does not show where chunks lie"};
  chunk.address = place.at;
  chunk.bytes = place.count;
  return chunk;
}

}  // namespace

Result<> list_chunks(hid_t dataset, Bytes& bytes, Dataset& out) {
  std::optional<std::uint64_t> cells = 1;
  for (std::size_t d = 0; d < out.shape.size() && cells; ++d)
    cells = formats::checked_mul(*cells, formats::div_ceil(out.shape[d], out.chunk[d]));
  if (cells == 0u) return {};
  const Handle space(H5Dget_space(dataset), H5Sclose);
  hsize_t stored = 0;
  if (!space || H5Dget_num_chunks(dataset, space.get(), &stored) < 0)
    return library_error(out.path);
  out.chunks_stored = stored;
  if (!cells || stored != *cells) return {};
  if (stored > kMostChunks)
    return Error{Code::limit,
                 compose("{}: {} chunks; the limit is {}", out.path, stored, kMostChunks)};
  std::vector<hsize_t> at(out.shape.size(), 0);
  for (std::uint64_t cell = 0; cell < stored; ++cell) {
    EBB_TRY_ASSIGN(const StoredChunk chunk, find_chunk(dataset, bytes, at, out.path));
    out.chunks.push_back(chunk);
    for (std::size_t d = at.size(); d > 0; --d) {
      at[d - 1] += out.chunk[d - 1];
      if (at[d - 1] < out.shape[d - 1]) break;
      at[d - 1] = 0;
    }
  }
  return {};
}

}  // namespace ebb::hdf5_reader
