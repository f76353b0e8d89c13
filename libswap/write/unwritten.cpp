#include "ebb/libswap/write/unwritten.h"

#include <algorithm>

namespace ebb::libswap {

Unwritten::Unwritten(const Segments& segments, std::uint32_t files)
    : skipped_(segments.count(), false), left_(segments.count()) {
  for (std::uint32_t file = 0; file < files; ++file) missing_.push_back(segments.count_of(file));
}

void Unwritten::skip(const Segment& segment, std::uint64_t index) {
  skipped_[index] = true;
  --missing_[segment.file];
  --left_;
}

bool Unwritten::took(std::uint32_t file) {
  --left_;
  touched_.push_back(file);
  return --missing_[file] == 0;
}

std::span<const std::uint32_t> Unwritten::touched() {
  std::ranges::sort(touched_);
  const auto repeated = std::ranges::unique(touched_);
  touched_.erase(repeated.begin(), repeated.end());
  return touched_;
}

void Unwritten::files_are_durable() {
  touched_.clear();
  complete_.clear();
}

void Unwritten::committed() {
  to_tell_.clear();
  committed_ = std::chrono::steady_clock::now();
}

}  // namespace ebb::libswap
