#include "examples/gpt/model.h"

#include <algorithm>
#include <cmath>

#include "ebb/formats/conversion/glob.h"
#include "examples/gpt/random.h"

namespace ebb::gpt {
namespace {

Result<> check(const Config& c) {
  if (c.sequence == 0 || c.width == 0 || c.layers == 0 || c.heads == 0 || c.hidden == 0)
    return Error{Code::usage, "model: every size must be at least 1", ""};
  if (c.width % (2 * c.heads) != 0)
    return Error{Code::usage,
                 compose("model: width {} is not a multiple of 2 x {} heads", c.width, c.heads),
                 ""};
  return {};
}

std::uint64_t add(Model& model, std::string name, Shape shape, Optimizer optimizer) {
  const std::uint64_t first = model.elems;
  const std::uint64_t elems = formats::volume(shape);
  model.parameters.push_back({std::move(name), std::move(shape), optimizer, first, elems});
  model.elems += elems;
  return first;
}

// Of all parameters since the last one.
void end_part(Model& model) {
  Part part;
  if (!model.parts.empty()) {
    const Part& last = model.parts.back();
    part.first_parameter = last.first_parameter + last.parameters;
    part.first = last.first + last.elems;
  }
  part.parameters = static_cast<std::uint32_t>(model.parameters.size()) - part.first_parameter;
  part.elems = model.elems - part.first;
  model.parts.push_back(part);
}

// The scale of a parameter's initial values; its name says what it is.
float initial_scale(const Model& model, const Parameter& parameter) {
  const auto ends_with = [&](std::string_view end) { return parameter.name.ends_with(end); };
  const double uniform = std::sqrt(3.0 / static_cast<double>(parameter.shape.back()));
  if (ends_with("head.weight")) return 0.0f;
  const double residual = std::sqrt(1.0 / (2.0 * model.config.layers));
  if (ends_with("output.weight") || ends_with("down.weight"))
    return static_cast<float>(uniform * residual);
  return static_cast<float>(uniform);
}

}  // namespace

Result<Model> Model::make(const Config& config) {
  EBB_TRY(check(config));
  Model model;
  model.config = config;
  const std::uint64_t d = config.width, h = config.hidden;
  model.embedding = add(model, "embedding.weight", {kVocabulary, d}, Optimizer::adamw);
  end_part(model);
  for (std::uint32_t i = 0; i < config.layers; ++i) {
    const std::string block = compose("blocks.{}.", i);
    BlockPlaces at;
    at.attention_gain = add(model, block + "attention.gain", {d}, Optimizer::adamw);
    at.query = add(model, block + "attention.query.weight", {d, d}, Optimizer::muon);
    at.key = add(model, block + "attention.key.weight", {d, d}, Optimizer::muon);
    at.value = add(model, block + "attention.value.weight", {d, d}, Optimizer::muon);
    at.output = add(model, block + "attention.output.weight", {d, d}, Optimizer::muon);
    at.mlp_gain = add(model, block + "mlp.gain", {d}, Optimizer::adamw);
    at.up = add(model, block + "mlp.up.weight", {h, d}, Optimizer::muon);
    at.down = add(model, block + "mlp.down.weight", {d, h}, Optimizer::muon);
    model.blocks.push_back(at);
    end_part(model);
  }
  model.final_gain = add(model, "final.gain", {d}, Optimizer::adamw);
  model.head = add(model, "head.weight", {kVocabulary, d}, Optimizer::adamw);
  end_part(model);
  return model;
}

Result<> Model::freeze(const std::vector<std::string>& patterns) {
  for (const std::string& pattern : patterns) {
    bool fits = false;
    for (Parameter& parameter : parameters) {
      if (!formats::glob_match(pattern, parameter.name)) continue;
      parameter.optimizer = Optimizer::frozen;
      fits = true;
    }
    if (!fits)
      return Error{Code::usage, compose("--freeze {}: no parameter has such a name", pattern),
                   "names are as in ckpt-inspect DIR --tensors"};
  }
  const bool all = std::ranges::all_of(
      parameters, [](const Parameter& one) { return one.optimizer == Optimizer::frozen; });
  if (all) return Error{Code::usage, "--freeze leaves nothing to train", ""};
  return {};
}

std::vector<float> initial_weights(const Model& model, std::uint64_t seed) {
  std::vector<float> weights(model.elems);
  for (const Parameter& parameter : model.parameters) {
    const float scale = initial_scale(model, parameter);
    const bool gain = parameter.shape.size() == 1;
    for (std::uint64_t i = parameter.first; i < parameter.first + parameter.elems; ++i)
      weights[i] = gain ? 1.0f : scale * random_float(seed, i);
  }
  return weights;
}

}  // namespace ebb::gpt
