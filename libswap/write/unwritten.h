// Unwritten: which segments of a write are still to come, and what was written but is not durable
// yet. Of one thread.
#pragma once

#include <chrono>
#include <cstdint>
#include <span>
#include <vector>

#include "ebb/libswap/write/segments.h"

namespace ebb::libswap {

class Unwritten {
 public:
  Unwritten(const Segments& segments, std::uint32_t files);

  // Segments.
  std::uint64_t left() const { return left_; }
  // An earlier attempt has made it durable. Before the first took().
  void skip(const Segment& segment, std::uint64_t index);
  bool skipped(std::uint64_t index) const { return skipped_[index]; }

  // One of the file was written. True: that was its last.
  bool took(std::uint32_t file);
  void completed(std::uint32_t file) { complete_.push_back(file); }
  // And is to be told once it is durable.
  void tell(WrittenSegment written) { to_tell_.push_back(std::move(written)); }

  // Since the last commit: files written to, each once; those of them that are complete.
  std::span<const std::uint32_t> touched();
  std::span<const std::uint32_t> complete() const { return complete_; }
  std::span<const WrittenSegment> to_tell() const { return to_tell_; }
  std::chrono::steady_clock::time_point committed_at() const { return committed_; }
  // A commit that fails is tried again where what failed was asked to stop: files are durable once.
  void files_are_durable();
  void committed();

 private:
  std::vector<bool> skipped_;           // by segment
  std::vector<std::uint64_t> missing_;  // segments, by file
  std::uint64_t left_ = 0;              // segments
  std::vector<std::uint32_t> touched_;
  std::vector<std::uint32_t> complete_;
  std::vector<WrittenSegment> to_tell_;
  std::chrono::steady_clock::time_point committed_ = std::chrono::steady_clock::now();
};

}  // namespace ebb::libswap
