#include "formats/catalog/emit.h"

#include <algorithm>
#include <array>

#include "formats/catalog/range_crcs.h"
#include "formats/core/check.h"
#include "formats/core/crc32c.h"

namespace formats {

DType written_dtype(const TensorData& data, const Catalog& content) {
  return data.as.value_or(content.tensors[data.tensor].dtype);
}

RangeCrcs::RangeCrcs(const OutputFile& file) {
  for (const Fragment& fragment : file.fragments)
    if (const auto* sealed = std::get_if<Sealed>(&fragment.data))
      for (const FileRange& range : sealed->over) crcs_.emplace(range, 0);
  next_ = crcs_.begin();
}

void RangeCrcs::feed(ByteView bytes) {
  while (!bytes.empty()) {
    while (next_ != crcs_.end() && position_ >= next_->first.offset + next_->first.size) ++next_;
    std::uint64_t run = bytes.size();
    if (next_ != crcs_.end()) {
      const auto& [offset, size] = next_->first;
      const bool inside = position_ >= offset;
      run = std::min(run, (inside ? offset + size : offset) - position_);
      if (inside) next_->second = crc32_zip(next_->second, bytes.first(run));
    }
    position_ += run;
    bytes = bytes.subspan(run);
  }
}

void RangeCrcs::feed_zeros(std::uint64_t count) {
  static constexpr std::array<std::byte, 4096> kZeros{};
  for (; count > 0; count -= std::min<std::uint64_t>(count, kZeros.size()))
    feed(ByteView(kZeros).first(std::min<std::uint64_t>(count, kZeros.size())));
}

std::vector<std::uint32_t> RangeCrcs::of(const std::vector<FileRange>& ranges) const {
  std::vector<std::uint32_t> out;
  for (const FileRange& range : ranges) {
    const auto found = crcs_.find(range);
    CHECK(found != crcs_.end() && range.offset + range.size <= position_);
    out.push_back(found->second);
  }
  return out;
}

}  // namespace formats
