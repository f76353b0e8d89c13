// FragmentReader: what belongs into a range of an output file, whatever fragments overlap it and
// wherever they are cut. Elements that a range's border splits are read on both sides and counted
// where they begin.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/catalog/emit.h"
#include "ebb/formats/elements/box_reader.h"
#include "ebb/libswap/publish/written_segment.h"
#include "ebb/libswap/sys/mutex.h"
#include "ebb/libswap/write/plan_check.h"

namespace ebb::libswap {

// Borrows everything. Thread-safe. Memory: BoxReader's indexes, and per call one run of BoxReader
// and what kCastBytes says.
class FragmentReader {
 public:
  static constexpr std::uint64_t kCastBytes = std::uint64_t{512} << 10;

  FragmentReader(const Checkpoint& content, const EmitPlan& plan, const CheckedPlan& checked);

  // Bytes [offset, offset + into.size()) of the file; the places of Sealed fragments stay as they
  // are. Code::corrupt when what was gathered is not what the chunks hold.
  Result<Shares> read(const OutputFile& file, std::uint64_t offset,
                      std::span<std::byte> into) const;

 private:
  class Elements;
  Result<const formats::BoxReader*> reader_of(std::uint32_t tensor) const;

  const Checkpoint& content_;
  const EmitPlan& plan_;
  const CheckedPlan& checked_;
  std::vector<std::vector<std::uint32_t>> derived_from_;  // numbers in plan.derived, by tensor
  mutable Mutex mutex_;
  // Made when first needed.
  mutable std::vector<std::unique_ptr<formats::BoxReader>> readers_ EBB_GUARDED_BY(mutex_);
};

// The fragments of a file that reach into a range, or may: those that begin before its end, from
// the last one on that begins at or before its start.
std::span<const Fragment> fragments_in(const OutputFile& file, std::uint64_t offset,
                                       std::uint64_t size);
// What of `part`, which lies at `offset` of a file, falls into its bytes from `first` on.
void copy_overlap(ByteView part, std::uint64_t offset, std::span<std::byte> into,
                  std::uint64_t first);

}  // namespace ebb::libswap
