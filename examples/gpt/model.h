// A byte-level GPT: what its parameters are called, how they are shaped and which optimizer each
// one belongs to. All of them lie in one flat vector, in the order of Model::parameters.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "ebb/formats/core/result.h"
#include "ebb/formats/layout/box.h"

namespace ebb::gpt {

constexpr std::uint32_t kVocabulary = 256;  // a token is a byte

struct Config {
  std::uint32_t sequence = 256;  // tokens seen at once
  std::uint32_t width = 128;     // of the residual stream
  std::uint32_t layers = 4;
  std::uint32_t heads = 4;     // width / heads must be even: rotary positions turn pairs
  std::uint32_t hidden = 512;  // of the MLP
};

// Muon orthogonalises the update of a matrix that maps activations to activations; lookups
// (embedding), the classifier and gains are not such maps and stay with AdamW. A frozen parameter
// keeps its weights; they lie in the store like all others.
enum class Optimizer : std::uint8_t { muon, adamw, frozen };

struct Parameter {
  std::string name;
  Shape shape;  // (rows out, columns in) for matrices: y = x W^T
  Optimizer optimizer = Optimizer::adamw;
  std::uint64_t first = 0;  // where it begins in the flat vector
  std::uint64_t elems = 0;
};

// Parameters that the forward pass uses at once, one behind the other: the embedding, a block, the
// head with the gain before it.
struct Part {
  std::uint32_t first_parameter = 0, parameters = 0;
  std::uint64_t first = 0, elems = 0;  // in the flat vector
};

// First elements of one block's parameters in the flat vector.
struct BlockPlaces {
  std::uint64_t attention_gain = 0;
  std::uint64_t query = 0, key = 0, value = 0, output = 0;
  std::uint64_t mlp_gain = 0;
  std::uint64_t up = 0, down = 0;
};

struct Model {
  Config config;
  std::vector<Parameter> parameters;  // in forward order
  std::vector<Part> parts;            // in forward order, all parameters
  std::uint64_t elems = 0;            // of all parameters together

  std::uint64_t embedding = 0;
  std::vector<BlockPlaces> blocks;
  std::uint64_t final_gain = 0;
  std::uint64_t head = 0;

  // Code::usage when the sizes do not fit together.
  static Result<Model> make(const Config& config);
  // Those whose names fit a pattern (*, ?, [...]). Code::usage for a pattern that fits none, and
  // where nothing is left to train.
  Result<> freeze(const std::vector<std::string>& patterns);
};

// The initial weights: element i is a function of `seed` and i only, so ranks may fill any part.
// Gains are 1; embedding and matrices uniform with variance 1/columns (the two that write into the
// residual stream smaller by the square root of their number); the classifier starts at zero.
std::vector<float> initial_weights(const Model& model, std::uint64_t seed);

}  // namespace ebb::gpt
