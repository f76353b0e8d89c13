// The yardstick: how well the next byte is predicted from the one before it, by counting pairs in
// the training text. A language model that has learned anything beyond that must be better.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace ebb::gpt {

class Bigram {
 public:
  explicit Bigram(std::span<const std::uint8_t> training_text);

  // p(next | previous): counts with kSmoothing added to each, so that no byte is impossible.
  double probability(std::uint8_t previous, std::uint8_t next) const;

  // Mean -log p in nats per byte over every byte of `text` but the first.
  // REQUIRES: at least two bytes.
  double loss(std::span<const std::uint8_t> text) const;

  // Small on purpose: it favours the yardstick (adding 1 costs it 0.1 nats on the licence texts).
  static constexpr double kSmoothing = 0.05;

 private:
  std::vector<std::uint64_t> pairs_;   // [previous][next]
  std::vector<std::uint64_t> totals_;  // [previous]
};

}  // namespace ebb::gpt
