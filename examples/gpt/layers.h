// The forward and the backward pass of one sequence. Nothing here depends on other sequences, on
// the rank count or on threads: the bits of a sequence's gradient are a function of weights and
// tokens.
//
// Real is float in training; the tests run the same code in double against finite differences.
// Shapes: T = sequence, d = width, h = hidden, H = heads. Everything is row-major and dense.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "examples/gpt/model.h"

namespace ebb::gpt {

// What the backward pass needs of one block.
template <typename Real>
struct BlockActivations {
  std::vector<Real> input;              // (T, d) the residual stream on entry
  std::vector<Real> normed;             // (T, d)
  std::vector<Real> inverse_rms;        // (T)
  std::vector<Real> query, key, value;  // (T, d); query and key after the rotation
  std::vector<Real> attention;          // (H, T, T) softmax weights, zero above the diagonal
  std::vector<Real> mixed;              // (T, d) heads side by side
  std::vector<Real> middle;             // (T, d) the residual stream after attention
  std::vector<Real> mlp_normed;         // (T, d)
  std::vector<Real> mlp_inverse_rms;    // (T)
  std::vector<Real> raised;             // (T, h) before the nonlinearity
  std::vector<Real> squared;            // (T, h) relu(raised)^2
};

// All of one sequence's numbers; reused from sequence to sequence.
template <typename Real>
struct Activations {
  explicit Activations(const Model& model);
  // Bytes of all buffers, for the memory plan.
  static std::uint64_t bytes(const Model& model);

  std::vector<Real> rotation;  // (T, d/H) cosine and sine per pair: a constant table
  std::vector<BlockActivations<Real>> blocks;
  std::vector<Real> output;             // (T, d) the residual stream after the last block
  std::vector<Real> final_normed;       // (T, d)
  std::vector<Real> final_inverse_rms;  // (T)
  std::vector<Real> probabilities;      // (T, 256)

  // Scratch of the backward pass.
  std::vector<Real> d_stream, d_normed, d_query, d_key, d_value, d_mixed;  // (T, d)
  std::vector<Real> d_hidden;                                              // (T, h)
  std::vector<Real> d_scores;                                              // (T, T)
};

// Called before the forward pass reads the first weight of a part, in order.
using BeforePart = std::function<void(const Part& part)>;

// Mean cross entropy in nats of predicting tokens[1..T] from tokens[0..T-1].
// REQUIRES: tokens.size() == T + 1, weights.size() == model.elems.
template <typename Real>
double forward(
    const Model& model, std::span<const Real> weights, std::span<const std::uint8_t> tokens,
    Activations<Real>& state, const BeforePart& before = [](const Part&) {});

// The gradient of that mean times `scale`, after forward() with the same arguments. Overwrites all
// of `gradient`.
template <typename Real>
void backward(const Model& model, std::span<const Real> weights,
              std::span<const std::uint8_t> tokens, Activations<Real>& state,
              std::span<Real> gradient, Real scale = Real{1});

}  // namespace ebb::gpt
