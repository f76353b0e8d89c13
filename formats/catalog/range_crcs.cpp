#include "ebb/formats/catalog/range_crcs.h"

#include <algorithm>
#include <array>

#include "ebb/formats/core/check.h"
#include "ebb/formats/core/crc32c.h"

namespace ebb::formats {

RangeCrcs::RangeCrcs(std::span<const Fragment> fragments, std::uint64_t position)
    : position_(position) {
  for (const Fragment& fragment : fragments)
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
    EBB_CHECK(found != crcs_.end() && range.offset + range.size <= position_);
    out.push_back(found->second);
  }
  return out;
}

BlockCrcs::BlockCrcs(const EmitPlan& plan) : plan_(plan) {
  for (const OutputFile& file : plan.files) {
    if (!file.blocks) continue;
    const Crc32cOfParts parts(file.blocks->bytes);
    files_.try_emplace(&file,
                       OfFile{*file.blocks, parts, std::vector(file.blocks->count, parts.zeros())});
  }
}

std::vector<BlockShare> BlockCrcs::shares(const OutputFile& file, std::uint64_t offset,
                                          ByteView bytes) const {
  std::vector<BlockShare> shares;
  const auto found = files_.find(&file);
  if (found == files_.end()) return shares;
  const auto& [blocks, parts, crcs] = found->second;
  if (offset < blocks.first) {
    const std::uint64_t before = std::min<std::uint64_t>(blocks.first - offset, bytes.size());
    offset += before;
    bytes = bytes.subspan(before);
  }
  while (!bytes.empty()) {
    const std::uint64_t block = (offset - blocks.first) / blocks.bytes;
    if (block >= blocks.count) break;
    const std::uint64_t inside = offset - blocks.first - block * blocks.bytes;
    const ByteView part = bytes.first(std::min<std::uint64_t>(bytes.size(), blocks.bytes - inside));
    shares.push_back({block, parts.contribution(inside, part)});
    offset += part.size();
    bytes = bytes.subspan(part.size());
  }
  return shares;
}

void BlockCrcs::add(const OutputFile& file, std::span<const BlockShare> shares) {
  for (const BlockShare& share : shares) files_.at(&file).crcs[share.block] ^= share.crc;
}

std::span<const std::uint32_t> BlockCrcs::of(std::uint32_t file) const {
  const auto found = files_.find(&plan_.files[file]);
  EBB_CHECK(found != files_.end());
  return found->second.crcs;
}

}  // namespace ebb::formats
