#include <algorithm>
#include <cmath>

#include "examples/gpt/layers.h"
#include "examples/gpt/math.h"

namespace ebb::gpt {
namespace {

// out = x / rms(x) * gain, row by row; keeps 1 / rms for the way back.
template <typename Real>
void normalise(const Real* x, const Real* gain, std::uint64_t rows, std::uint64_t width, Real* out,
               Real* inverse_rms) {
  for (std::uint64_t t = 0; t < rows; ++t, x += width, out += width) {
    const Real mean_square = dot(x, x, width) / static_cast<Real>(width);
    const Real inverse = Real{1} / std::sqrt(mean_square + static_cast<Real>(1e-6));
    for (std::uint64_t i = 0; i < width; ++i) out[i] = x[i] * inverse * gain[i];
    inverse_rms[t] = inverse;
  }
}

// y (T, out) = x (T, in) W^T + beta * y
template <typename Real>
void linear(std::uint64_t rows, std::uint64_t in, std::uint64_t out, const Real* x,
            const Real* weight, Real beta, Real* y) {
  multiply({rows, out, in}, Real{1}, Matrix<Real>{x, in}, transposed(weight, in), beta, y, out);
}

// Rotary positions (Su et al. 2021): pair p of a head turns by t * 10000^(-2p / head width).
template <typename Real>
std::vector<Real> rotation_table(const Config& config) {
  const std::uint64_t pairs = config.width / config.heads / 2;
  std::vector<Real> table(config.sequence * pairs * 2);
  for (std::uint64_t t = 0; t < config.sequence; ++t)
    for (std::uint64_t p = 0; p < pairs; ++p) {
      const double turn = std::pow(1e4, -static_cast<double>(p) / static_cast<double>(pairs));
      const double angle = static_cast<double>(t) * turn;
      table[(t * pairs + p) * 2] = static_cast<Real>(std::cos(angle));
      table[(t * pairs + p) * 2 + 1] = static_cast<Real>(std::sin(angle));
    }
  return table;
}

template <typename Real>
void rotate(const Config& config, const std::vector<Real>& table, Real* x) {
  const std::uint64_t pairs = config.width / config.heads / 2;
  for (std::uint64_t t = 0; t < config.sequence; ++t)
    for (std::uint64_t head = 0; head < config.heads; ++head)
      for (std::uint64_t p = 0; p < pairs; ++p, x += 2) {
        const Real cosine = table[(t * pairs + p) * 2], sine = table[(t * pairs + p) * 2 + 1];
        const Real a = x[0], b = x[1];
        x[0] = a * cosine - b * sine;
        x[1] = a * sine + b * cosine;
      }
}

// Row t of the scores becomes weights over positions 0..t that sum to one; later positions get
// zero.
template <typename Real>
void causal_softmax(std::uint64_t length, Real* scores) {
  for (std::uint64_t t = 0; t < length; ++t, scores += length) {
    const Real largest = *std::max_element(scores, scores + t + 1);
    Real sum = 0;
    for (std::uint64_t i = 0; i <= t; ++i) sum += scores[i] = std::exp(scores[i] - largest);
    for (std::uint64_t i = 0; i <= t; ++i) scores[i] /= sum;
    std::fill(scores + t + 1, scores + length, Real{0});
  }
}

template <typename Real>
void attend(const Config& config, BlockActivations<Real>& block) {
  const std::uint64_t length = config.sequence, d = config.width, head_width = d / config.heads;
  const Real scale = Real{1} / std::sqrt(static_cast<Real>(head_width));
  for (std::uint64_t head = 0; head < config.heads; ++head) {
    const std::uint64_t column = head * head_width;
    Real* scores = block.attention.data() + head * length * length;
    multiply({length, length, head_width}, scale, Matrix<Real>{block.query.data() + column, d},
             transposed(block.key.data() + column, d), Real{0}, scores, length);
    causal_softmax(length, scores);
    multiply({length, head_width, length}, Real{1}, Matrix<Real>{scores, length},
             Matrix<Real>{block.value.data() + column, d}, Real{0}, block.mixed.data() + column, d);
  }
}

// Reads block.input, leaves everything in between, writes the residual stream to `out`.
template <typename Real>
void run_block(const Config& config, const BlockPlaces& at, const Real* weights,
               const std::vector<Real>& rotation, BlockActivations<Real>& block, Real* out) {
  const std::uint64_t rows = config.sequence, d = config.width, h = config.hidden;
  normalise(block.input.data(), weights + at.attention_gain, rows, d, block.normed.data(),
            block.inverse_rms.data());
  linear(rows, d, d, block.normed.data(), weights + at.query, Real{0}, block.query.data());
  linear(rows, d, d, block.normed.data(), weights + at.key, Real{0}, block.key.data());
  linear(rows, d, d, block.normed.data(), weights + at.value, Real{0}, block.value.data());
  rotate(config, rotation, block.query.data());
  rotate(config, rotation, block.key.data());
  attend(config, block);
  block.middle = block.input;
  linear(rows, d, d, block.mixed.data(), weights + at.output, Real{1}, block.middle.data());

  normalise(block.middle.data(), weights + at.mlp_gain, rows, d, block.mlp_normed.data(),
            block.mlp_inverse_rms.data());
  linear(rows, d, h, block.mlp_normed.data(), weights + at.up, Real{0}, block.raised.data());
  for (std::uint64_t i = 0; i < rows * h; ++i) {
    const Real positive = std::max(block.raised[i], Real{0});
    block.squared[i] = positive * positive;
  }
  std::copy(block.middle.begin(), block.middle.end(), out);
  linear(rows, h, d, block.squared.data(), weights + at.down, Real{1}, out);
}

// Turns logits into probabilities in place; returns the mean of -log p(next byte).
template <typename Real>
double cross_entropy(std::span<const std::uint8_t> next, Real* logits) {
  double loss = 0;
  for (const std::uint8_t byte : next) {
    const Real largest = *std::max_element(logits, logits + kVocabulary);
    const double at_byte = static_cast<double>(logits[byte] - largest);
    Real sum = 0;
    for (std::uint32_t i = 0; i < kVocabulary; ++i)
      sum += logits[i] = std::exp(logits[i] - largest);
    for (std::uint32_t i = 0; i < kVocabulary; ++i) logits[i] /= sum;
    loss += std::log(static_cast<double>(sum)) - at_byte;
    logits += kVocabulary;
  }
  return loss / static_cast<double>(next.size());
}

}  // namespace

template <typename Real>
Activations<Real>::Activations(const Model& model) : rotation(rotation_table<Real>(model.config)) {
  const Config& c = model.config;
  const std::uint64_t stream = std::uint64_t{c.sequence} * c.width;
  const std::uint64_t wide = std::uint64_t{c.sequence} * c.hidden;
  const std::uint64_t square = std::uint64_t{c.sequence} * c.sequence;
  blocks.resize(c.layers);
  for (BlockActivations<Real>& block : blocks) {
    for (auto* buffer : {&block.input, &block.normed, &block.query, &block.key, &block.value,
                         &block.mixed, &block.middle, &block.mlp_normed})
      buffer->resize(stream);
    for (auto* buffer : {&block.inverse_rms, &block.mlp_inverse_rms}) buffer->resize(c.sequence);
    for (auto* buffer : {&block.raised, &block.squared}) buffer->resize(wide);
    block.attention.resize(c.heads * square);
  }
  for (auto* buffer :
       {&output, &final_normed, &d_stream, &d_normed, &d_query, &d_key, &d_value, &d_mixed})
    buffer->resize(stream);
  final_inverse_rms.resize(c.sequence);
  probabilities.resize(std::uint64_t{c.sequence} * kVocabulary);
  d_hidden.resize(wide);
  d_scores.resize(square);
}

template <typename Real>
std::uint64_t Activations<Real>::bytes(const Model& model) {
  const Config& c = model.config;
  const std::uint64_t d = c.width, h = c.hidden, length = c.sequence;
  const std::uint64_t block = 8 * d + 2 + 2 * h + c.heads * length;
  const std::uint64_t rest = 8 * d + d / c.heads + 1 + kVocabulary + h + length;
  const std::uint64_t per_token = c.layers * block + rest;
  return per_token * c.sequence * sizeof(Real);
}

template <typename Real>
double forward(const Model& model, std::span<const Real> weights,
               std::span<const std::uint8_t> tokens, Activations<Real>& state,
               const BeforePart& before) {
  const Config& c = model.config;
  EBB_CHECK(tokens.size() == c.sequence + 1 && weights.size() == model.elems);
  const Real* w = weights.data();
  const std::uint64_t d = c.width;
  before(model.parts.front());
  for (std::uint64_t t = 0; t < c.sequence; ++t)
    std::copy_n(w + model.embedding + tokens[t] * d, d, state.blocks[0].input.data() + t * d);
  for (std::size_t i = 0; i < c.layers; ++i) {
    std::vector<Real>& out = i + 1 < c.layers ? state.blocks[i + 1].input : state.output;
    before(model.parts[i + 1]);
    run_block(c, model.blocks[i], w, state.rotation, state.blocks[i], out.data());
  }
  before(model.parts.back());
  normalise(state.output.data(), w + model.final_gain, c.sequence, d, state.final_normed.data(),
            state.final_inverse_rms.data());
  linear(c.sequence, d, kVocabulary, state.final_normed.data(), w + model.head, Real{0},
         state.probabilities.data());
  return cross_entropy(tokens.subspan(1), state.probabilities.data());
}

template struct Activations<float>;
template struct Activations<double>;
template double forward(const Model&, std::span<const float>, std::span<const std::uint8_t>,
                        Activations<float>&, const BeforePart&);
template double forward(const Model&, std::span<const double>, std::span<const std::uint8_t>,
                        Activations<double>&, const BeforePart&);

}  // namespace ebb::gpt
