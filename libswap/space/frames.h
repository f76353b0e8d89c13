// Frames: who holds which frame of a budget, and which run of neighbouring ones is given away next.
// Pure bookkeeping.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

namespace ebb::libswap {

class Frames {
 public:
  using Holder = std::uint32_t;
  static constexpr Holder kNobody = 0xffffffff;

  explicit Frames(std::uint64_t count) : holders_(count, kNobody) {}

  std::uint64_t count() const { return holders_.size(); }
  std::uint64_t free() const { return free_; }
  void take(std::uint64_t first, std::uint64_t count, Holder holder);
  void give_back(std::uint64_t first, std::uint64_t count);

  // When a holder's frames will be wanted again, the later the better; nullopt: it cannot go.
  using Sparing = std::function<std::optional<std::uint64_t>(Holder)>;
  // The run of `count` frames that will be missed the latest; nullopt: every run has a frame whose
  // holder cannot go.
  std::optional<std::uint64_t> cheapest(std::uint64_t count, const Sparing& sparing) const;
  // Who holds frames of that run, once each.
  std::vector<Holder> holders(std::uint64_t first, std::uint64_t count) const;

 private:
  std::vector<Holder> holders_;
  std::uint64_t free_ = holders_.size();
};

}  // namespace ebb::libswap
