#include "examples/gpt/bigram.h"

#include <cmath>

#include "ebb/formats/core/check.h"

namespace ebb::gpt {

constexpr std::size_t kBytes = 256;

Bigram::Bigram(std::span<const std::uint8_t> training_text)
    : pairs_(kBytes * kBytes), totals_(kBytes) {
  for (std::size_t i = 1; i < training_text.size(); ++i) {
    ++pairs_[training_text[i - 1] * kBytes + training_text[i]];
    ++totals_[training_text[i - 1]];
  }
}

double Bigram::probability(std::uint8_t previous, std::uint8_t next) const {
  const auto pair = static_cast<double>(pairs_[previous * kBytes + next]);
  const auto total = static_cast<double>(totals_[previous]);
  return (pair + kSmoothing) / (total + kSmoothing * static_cast<double>(kBytes));
}

double Bigram::loss(std::span<const std::uint8_t> text) const {
  EBB_CHECK(text.size() >= 2);
  double sum = 0;
  for (std::size_t i = 1; i < text.size(); ++i) sum -= std::log(probability(text[i - 1], text[i]));
  return sum / static_cast<double>(text.size() - 1);
}

}  // namespace ebb::gpt
