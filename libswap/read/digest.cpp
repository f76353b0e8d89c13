#include "ebb/libswap/read/digest.h"

#include <algorithm>
#include <optional>

#include "ebb/formats/core/check.h"
#include "ebb/formats/core/sha256.h"
#include "ebb/formats/core/units.h"
#include "ebb/formats/elements/box_reader.h"
#include "ebb/formats/elements/fingerprint.h"
#include "ebb/libswap/read/in_parallel.h"
#include "ebb/libswap/sys/aligned_buffer.h"
#include "ebb/libswap/sys/mutex.h"

namespace ebb::libswap {

Result<std::string> sha256_of(const Checkpoint& checkpoint, const TensorEntry& tensor) {
  EBB_TRY_ASSIGN(const formats::BoxReader reader, formats::BoxReader::open(checkpoint, tensor));
  EBB_TRY_ASSIGN(formats::BoxStream stream,
                 formats::BoxStream::open(reader, formats::whole(tensor.shape)));
  formats::Sha256 sha;
  ByteVector bytes(std::min(stream.bytes_left(), formats::BoxReader::kMaxRun));
  while (stream.bytes_left() > 0) {
    const auto part =
        std::span(bytes).first(std::min<std::uint64_t>(bytes.size(), stream.bytes_left()));
    EBB_TRY(stream.read(part));
    sha.update(part);
  }
  return sha.hex();
}

namespace {

constexpr std::uint32_t kMostWorkers = 4;  // of fingerprint_of()
constexpr std::uint64_t kBlock = 4096;     // of a file

// Hands out runs of all chunks, tensor by tensor.
class Runs {
 public:
  explicit Runs(std::span<const TensorOf> tensors) : tensors_(tensors) {}

  struct Run {
    std::size_t tensor = 0;
    const Chunk* chunk = nullptr;
    std::uint64_t at = 0;  // byte of the chunk
    std::uint64_t size = 0;
  };
  std::optional<Run> next() {
    const MutexLock lock(mutex_);
    for (; tensor_ < tensors_.size(); ++tensor_, chunk_ = 0) {
      const TensorEntry& tensor = *tensors_[tensor_].tensor;
      for (; chunk_ < tensor.chunks.size(); ++chunk_, at_ = 0) {
        const Chunk& chunk = tensor.chunks[chunk_];
        const auto size = formats::packed_bytes(tensor.dtype, formats::volume(chunk.box.extent));
        EBB_CHECK(size.has_value());  // the whole tensor's fits
        if (at_ == *size) continue;
        const Run run{tensor_, &chunk, at_, std::min(*size - at_, until_border(tensor, chunk))};
        at_ += run.size;
        return run;
      }
    }
    return std::nullopt;
  }

 private:
  // The runs that follow begin where a block of the file does.
  std::uint64_t until_border(const TensorEntry& tensor, const Chunk& chunk) const
      EBB_REQUIRES(mutex_) {
    const std::uint64_t size = formats::BoxReader::kMaxRun - (chunk.offset + at_) % kBlock;
    return size - size % formats::div_ceil(bits_of(tensor.dtype), 8);
  }

  std::span<const TensorOf> tensors_;
  Mutex mutex_;
  std::size_t tensor_ EBB_GUARDED_BY(mutex_) = 0;
  std::size_t chunk_ EBB_GUARDED_BY(mutex_) = 0;
  std::uint64_t at_ EBB_GUARDED_BY(mutex_) = 0;
};

}  // namespace

Result<std::vector<std::uint64_t>> fingerprints_of(std::span<const TensorOf> tensors,
                                                   std::uint32_t workers,
                                                   const std::atomic<bool>* cancel) {
  for (const TensorOf& one : tensors)  // its chunks lie inside it, its bytes can be counted
    EBB_TRY(formats::BoxReader::open(*one.checkpoint, *one.tensor));
  Runs runs(tensors);
  Mutex mutex;
  std::vector<std::uint64_t> sums(tensors.size(), 0);
  const auto work = [&](const std::atomic<bool>& stop) -> Result<> {
    EBB_TRY_ASSIGN(AlignedBuffer memory,
                   AlignedBuffer::allocate(formats::BoxReader::kMaxRun + kBlock));
    while (!stop.load(std::memory_order_relaxed)) {
      if (cancel != nullptr && cancel->load(std::memory_order_relaxed))
        return Error{Code::cancelled, "stopped on request"};
      const auto run = runs.next();
      if (!run) break;
      const TensorOf& of = tensors[run->tensor];
      // Where a format stores elements as they are, they come from the disk without a copy.
      const std::uint64_t in_block = (run->chunk->offset + run->at) % kBlock;
      const std::span<std::byte> bytes = memory.bytes().subspan(in_block, run->size);
      EBB_TRY(of.checkpoint->read(*of.tensor, *run->chunk, run->at, bytes));
      const bool packed = bits_of(of.tensor->dtype) % 8 != 0;
      const std::uint32_t elem = packed ? 1 : bytes_of(of.tensor->dtype);
      const std::uint64_t sum = packed ? formats::fingerprint(run->at, bytes, 1)
                                       : formats::fingerprint(of.tensor->shape, run->chunk->box,
                                                              run->at / elem, bytes, elem);
      const MutexLock lock(mutex);
      sums[run->tensor] += sum;
    }
    return {};
  };
  EBB_TRY(in_parallel(workers, work));
  return sums;
}

Result<std::uint64_t> fingerprint_of(const Checkpoint& checkpoint, const TensorEntry& tensor) {
  const TensorOf one{&checkpoint, &tensor};
  std::uint64_t runs = 0;
  for (const Chunk& chunk : tensor.chunks)
    runs += formats::packed_bytes(tensor.dtype, formats::volume(chunk.box.extent)).value_or(0) /
                formats::BoxReader::kMaxRun +
            1;
  const std::uint64_t small = runs < 2 ? 1 : std::min<std::uint64_t>(runs, kMostWorkers);
  const auto workers = std::min(workers_or_default(0), static_cast<std::uint32_t>(small));
  EBB_TRY_ASSIGN(const auto fingerprints, fingerprints_of({&one, 1}, workers, nullptr));
  return fingerprints.front();
}

}  // namespace ebb::libswap
