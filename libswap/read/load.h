// Load: fills memory from any described checkpoint, whatever its shards look like: what each rank
// of a trainer does when it starts. Ranks load on their own; nothing is exchanged.
//
// Several reads are in flight, in the order in which the first bytes of what they fill lie in the
// files. What arrives is proven as BoxStream proves it: each run of elements has the fingerprint of
// what the chunks hold, and whatever checksums the format has over what is read whole.
//
// Memory: for each worker what BoxReader needs and a bounce buffer of its source, together at most
// 6 MiB. Where an address and the place in the file of what goes there are equal modulo 4096, a
// file's bytes arrive without a copy: buffers that begin at such a border and are on huge pages
// (AlignedBuffer) are the fastest.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <span>
#include <vector>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/elements/box_reader.h"
#include "ebb/libswap/sys/home_process.h"

namespace ebb::libswap {

// A box of a tensor, and the memory for its elements: row-major, dense, little-endian.
struct Wanted {
  std::uint32_t tensor = 0;  // index into catalog().tensors
  Box box;
  std::span<std::byte> into;  // exactly its bytes
};

// A flat range of a tensor of that shape, and memory for its elements, as boxes that are wanted. Of
// a range that is not inside, or memory that is not exactly its bytes, as what load() refuses.
void want_range(std::uint32_t tensor, const Shape& shape, FlatRange range,
                std::span<std::byte> into, std::vector<Wanted>& wanted);

// On two cores six reads at a time were as fast as twelve. No more on more cores: they take memory
// beside what is loaded.
constexpr std::uint32_t kLoadWorkers = 6;

struct LoadOptions {
  std::uint32_t workers = 0;                  // 0: kLoadWorkers
  const std::atomic<bool>* cancel = nullptr;  // polled once per 4 MiB; may be null
};

struct LoadReport {
  std::uint64_t bytes = 0;
  // Of each that was wanted: fingerprint.h of its elements, so that those of all ranks add up to
  // the tensor's.
  std::vector<std::uint64_t> fingerprints;
};

// Blocks. Errors: layout (a box outside its tensor, memory of another size), incomplete or corrupt
// (a tensor of which something is wanted is not stored whole, exactly once), cancelled, and those
// of reading. After an error the memory holds anything.
Result<LoadReport> load(const Checkpoint& checkpoint, std::span<const Wanted> wanted,
                        const LoadOptions& options = {});

// What is known of a checkpoint stays from one call to the next: for those who load it in portions.
// Borrows the checkpoint. One call at a time. Memory: BoxReader's index of each tensor that
// something was wanted of.
class Loader {
 public:
  explicit Loader(const Checkpoint& checkpoint, const LoadOptions& options = {})
      : checkpoint_(checkpoint), options_(options) {}

  // As load(). Code::state in a child made by fork().
  Result<LoadReport> load(std::span<const Wanted> wanted);

 private:
  class Portion;

  Result<const formats::BoxReader*> reader_of(std::uint32_t tensor);

  HomeProcess process_{"loader"};
  const Checkpoint& checkpoint_;
  LoadOptions options_;
  std::map<std::uint32_t, formats::BoxReader> readers_;  // by tensor; coverage proven
};

}  // namespace ebb::libswap
