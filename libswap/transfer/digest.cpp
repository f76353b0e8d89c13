#include "libswap/transfer/digest.h"

#include <algorithm>

#include "formats/core/check.h"
#include "formats/core/sha256.h"
#include "libswap/transfer/box_reader.h"
#include "libswap/transfer/fingerprint.h"

namespace libswap {

using formats::ByteVector;
using formats::Result;

namespace {

// Of the elements that lie in `bytes`, which begin at byte `at` of the chunk.
std::uint64_t chunk_part(const formats::TensorEntry& tensor, const formats::Chunk& chunk,
                         std::uint64_t at, formats::ByteView bytes, std::uint32_t elem_bytes) {
  std::uint64_t sum = 0;
  for (formats::Box& part :
       formats::boxes_of(chunk.box.extent, {at / elem_bytes, bytes.size() / elem_bytes})) {
    for (std::size_t d = 0; d < part.offset.size(); ++d) part.offset[d] += chunk.box.offset[d];
    const auto of_part = bytes.first(formats::volume(part.extent) * elem_bytes);
    sum += fingerprint(tensor.shape, part, of_part, elem_bytes);
    bytes = bytes.subspan(of_part.size());
  }
  return sum;
}

}  // namespace

Result<std::string> sha256_of(const formats::Checkpoint& checkpoint,
                              const formats::TensorEntry& tensor) {
  TRY_ASSIGN(const BoxReader reader, BoxReader::open(checkpoint, tensor));
  TRY_ASSIGN(BoxStream stream, BoxStream::open(reader, formats::whole(tensor.shape)));
  formats::Sha256 sha;
  ByteVector bytes(std::min(stream.bytes_left(), BoxReader::kMaxRun));
  while (stream.bytes_left() > 0) {
    const auto part =
        std::span(bytes).first(std::min<std::uint64_t>(bytes.size(), stream.bytes_left()));
    TRY(stream.read(part));
    sha.update(part);
  }
  return sha.hex();
}

Result<std::uint64_t> fingerprint_of(const formats::Checkpoint& checkpoint,
                                     const formats::TensorEntry& tensor) {
  TRY_ASSIGN(const BoxReader reader, BoxReader::open(checkpoint, tensor));
  ByteVector bytes;
  std::uint64_t sum = 0;
  for (const formats::Chunk& chunk : tensor.chunks) {
    const auto size = formats::packed_bytes(tensor.dtype, formats::volume(chunk.box.extent));
    CHECK(size.has_value());  // the whole tensor's fits
    for (std::uint64_t at = 0; at < *size; at += bytes.size()) {
      bytes.resize(std::min(*size - at, BoxReader::kMaxRun));
      TRY(checkpoint.read(tensor, chunk, at, bytes));
      sum += reader.packed() ? fingerprint(at, bytes, 1)
                             : chunk_part(tensor, chunk, at, bytes, reader.elem_bytes());
    }
  }
  return sum;
}

}  // namespace libswap
