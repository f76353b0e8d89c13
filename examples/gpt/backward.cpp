#include <algorithm>
#include <cmath>

#include "examples/gpt/layers.h"
#include "examples/gpt/math.h"

namespace ebb::gpt {
namespace {

// y = x W^T backwards: dW = dy^T x, and dx = dy W + beta * dx.
template <typename Real>
void linear_backward(std::uint64_t rows, std::uint64_t in, std::uint64_t out, const Real* x,
                     const Real* weight, const Real* dy, Real* d_weight, Real beta, Real* dx) {
  multiply({out, in, rows}, Real{1}, transposed(dy, out), Matrix<Real>{x, in}, Real{0}, d_weight,
           in);
  multiply({rows, in, out}, Real{1}, Matrix<Real>{dy, out}, Matrix<Real>{weight, in}, beta, dx, in);
}

// y = x * r * gain with r = 1 / rms(x) backwards. Adds to dx; writes d_gain.
// dx = r * (gain dy) - x * r^3 * mean(gain dy x), because dr/dx = -r^3 x / width.
template <typename Real>
void normalise_backward(const Real* x, const Real* gain, const Real* inverse_rms, const Real* dy,
                        std::uint64_t rows, std::uint64_t width, Real* d_gain, Real* dx) {
  std::fill(d_gain, d_gain + width, Real{0});
  std::vector<Real> weighted(width);
  for (std::uint64_t t = 0; t < rows; ++t, x += width, dy += width, dx += width) {
    const Real r = inverse_rms[t];
    for (std::uint64_t i = 0; i < width; ++i) {
      weighted[i] = gain[i] * dy[i];
      d_gain[i] += dy[i] * x[i] * r;
    }
    const Real mean = dot(weighted.data(), x, width) / static_cast<Real>(width);
    const Real pull = r * r * r * mean;
    for (std::uint64_t i = 0; i < width; ++i) dx[i] += r * weighted[i] - pull * x[i];
  }
}

// A rotation backwards turns the other way.
template <typename Real>
void rotate_back(const Config& config, const std::vector<Real>& table, Real* x) {
  const std::uint64_t pairs = config.width / config.heads / 2;
  for (std::uint64_t t = 0; t < config.sequence; ++t)
    for (std::uint64_t head = 0; head < config.heads; ++head)
      for (std::uint64_t p = 0; p < pairs; ++p, x += 2) {
        const Real cosine = table[(t * pairs + p) * 2], sine = table[(t * pairs + p) * 2 + 1];
        const Real a = x[0], b = x[1];
        x[0] = a * cosine + b * sine;
        x[1] = b * cosine - a * sine;
      }
}

// From d_mixed to d_query, d_key and d_value, head by head.
template <typename Real>
void attend_backward(const Config& config, const BlockActivations<Real>& block,
                     Activations<Real>& state) {
  const std::uint64_t length = config.sequence, d = config.width, head_width = d / config.heads;
  const Real scale = Real{1} / std::sqrt(static_cast<Real>(head_width));
  Real* d_scores = state.d_scores.data();
  for (std::uint64_t head = 0; head < config.heads; ++head) {
    const std::uint64_t column = head * head_width;
    const Real* weights = block.attention.data() + head * length * length;
    const Matrix<Real> d_mixed{state.d_mixed.data() + column, d};
    multiply({length, head_width, length}, Real{1}, transposed(weights, length), d_mixed, Real{0},
             state.d_value.data() + column, d);
    multiply({length, length, head_width}, Real{1}, d_mixed,
             transposed(block.value.data() + column, d), Real{0}, d_scores, length);
    for (std::uint64_t t = 0; t < length; ++t) {  // softmax: ds = p * (dp - sum(p dp))
      const Real* p = weights + t * length;
      Real* row = d_scores + t * length;
      const Real mean = dot(p, row, t + 1);
      for (std::uint64_t i = 0; i < length; ++i) row[i] = p[i] * (row[i] - mean);
    }
    multiply({length, head_width, length}, scale, Matrix<Real>{d_scores, length},
             Matrix<Real>{block.key.data() + column, d}, Real{0}, state.d_query.data() + column, d);
    multiply({length, head_width, length}, scale, transposed(d_scores, length),
             Matrix<Real>{block.query.data() + column, d}, Real{0}, state.d_key.data() + column, d);
  }
}

// state.d_stream: the gradient of the block's output on entry, of its input on return.
template <typename Real>
void block_backward(const Config& config, const BlockPlaces& at, const Real* w,
                    const BlockActivations<Real>& block, Activations<Real>& state, Real* g) {
  const std::uint64_t rows = config.sequence, d = config.width, h = config.hidden;
  Real* d_stream = state.d_stream.data();
  Real* d_normed = state.d_normed.data();
  linear_backward(rows, h, d, block.squared.data(), w + at.down, d_stream, g + at.down, Real{0},
                  state.d_hidden.data());
  for (std::uint64_t i = 0; i < rows * h; ++i)
    state.d_hidden[i] *= Real{2} * std::max(block.raised[i], Real{0});
  linear_backward(rows, d, h, block.mlp_normed.data(), w + at.up, state.d_hidden.data(), g + at.up,
                  Real{0}, d_normed);
  normalise_backward(block.middle.data(), w + at.mlp_gain, block.mlp_inverse_rms.data(), d_normed,
                     rows, d, g + at.mlp_gain, d_stream);

  linear_backward(rows, d, d, block.mixed.data(), w + at.output, d_stream, g + at.output, Real{0},
                  state.d_mixed.data());
  attend_backward(config, block, state);
  rotate_back(config, state.rotation, state.d_query.data());
  rotate_back(config, state.rotation, state.d_key.data());
  const Real* normed = block.normed.data();
  linear_backward(rows, d, d, normed, w + at.query, state.d_query.data(), g + at.query, Real{0},
                  d_normed);
  linear_backward(rows, d, d, normed, w + at.key, state.d_key.data(), g + at.key, Real{1},
                  d_normed);
  linear_backward(rows, d, d, normed, w + at.value, state.d_value.data(), g + at.value, Real{1},
                  d_normed);
  normalise_backward(block.input.data(), w + at.attention_gain, block.inverse_rms.data(), d_normed,
                     rows, d, g + at.attention_gain, d_stream);
}

// The gradient of the mean times `scale` by the logits: scale * (p - 1[next byte]) / T, in place.
template <typename Real>
void cross_entropy_backward(std::span<const std::uint8_t> next, Real scale, Real* probabilities) {
  const Real share = scale / static_cast<Real>(next.size());
  for (const std::uint8_t byte : next) {
    probabilities[byte] -= Real{1};
    for (std::uint32_t i = 0; i < kVocabulary; ++i) probabilities[i] *= share;
    probabilities += kVocabulary;
  }
}

}  // namespace

template <typename Real>
void backward(const Model& model, std::span<const Real> weights,
              std::span<const std::uint8_t> tokens, Activations<Real>& state,
              std::span<Real> gradient, Real scale) {
  const Config& c = model.config;
  EBB_CHECK(tokens.size() == c.sequence + 1 && gradient.size() == model.elems);
  const Real* w = weights.data();
  Real* g = gradient.data();
  const std::uint64_t d = c.width;
  cross_entropy_backward(tokens.subspan(1), scale, state.probabilities.data());
  linear_backward(c.sequence, d, kVocabulary, state.final_normed.data(), w + model.head,
                  state.probabilities.data(), g + model.head, Real{0}, state.d_normed.data());
  std::fill(state.d_stream.begin(), state.d_stream.end(), Real{0});
  normalise_backward(state.output.data(), w + model.final_gain, state.final_inverse_rms.data(),
                     state.d_normed.data(), c.sequence, d, g + model.final_gain,
                     state.d_stream.data());
  for (std::size_t i = c.layers; i-- > 0;)
    block_backward(c, model.blocks[i], w, state.blocks[i], state, g);

  Real* d_embedding = g + model.embedding;
  std::fill(d_embedding, d_embedding + kVocabulary * d, Real{0});
  for (std::uint64_t t = 0; t < c.sequence; ++t)
    for (std::uint64_t i = 0; i < d; ++i)
      d_embedding[tokens[t] * d + i] += state.d_stream[t * d + i];
}

template void backward(const Model&, std::span<const float>, std::span<const std::uint8_t>,
                       Activations<float>&, std::span<float>, float);
template void backward(const Model&, std::span<const double>, std::span<const std::uint8_t>,
                       Activations<double>&, std::span<double>, double);

}  // namespace ebb::gpt
