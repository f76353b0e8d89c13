// What the trainer describes: parameters, optimizer groups, and how its gradients and weights are
// cut over ranks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "ebb/formats/core/dtype.h"
#include "ebb/formats/layout/layout.h"
#include "ebb/libmuon/plan/axes.h"
#include "ebb/libmuon/spec/spec.h"

namespace ebb::libmuon {

using GroupSpec = std::variant<MuonSpec, AdamSpec>;

struct ParamSpec {
  std::string name;
  Shape shape;
  std::uint32_t group = 0;  // index into ModelSpec::groups
  // One of PartitionSpec::parts by its name, and where the parameter lives on the axes that one
  // leaves out, or which of them cut it first, one after the other. Empty: cut as PartitionSpec
  // says, over all ranks.
  std::string partition = {};
  std::vector<Coordinate> at = {};
  std::vector<DimensionCut> cuts = {};
  // As the trainer hands the gradient in and wants the weights: fp32 or bf16. They travel as that,
  // sums over micro-batches as fp32; state and arithmetic stay fp32.
  DType gradient = DType::f32, weight = DType::f32;
};

struct ModelSpec {
  std::vector<ParamSpec> params;  // forward order: the order of the sweep
  std::vector<GroupSpec> groups;
};

// Where a Muon matrix's state lives: whole at one rank, or cut as its gradient is, from where
// updates go to one rank that computes them whole, and back (ShardOrder). The bits are the same.
enum class Placement : std::uint8_t { owner, shard };
constexpr std::string_view name_of(Placement placement) {
  return placement == Placement::owner ? "owner" : "shard";
}

// What a gradient is that the trainer hands in. Summed over its ranks: the step's, or that of a
// micro-batch, which the engine adds to those before it (GradientSums). Partial: of the ranks that
// the gradients' layout gives the same elements (copies) each has its own part of a sum, which the
// engine makes (Reduction); an element that lies on one rank alone is the sum.
enum class HandIn : std::uint8_t { reduced, added, partial };

// What a step does with a parameter that has no gradient in it.
enum class WithoutGradient : std::uint8_t {
  untouched,  // nothing: weights, state and its own count of steps stay what they are
  zero,       // what it does with zeros: momentum and weights decay, AdamW counts the step
};

struct PartitionSpec {
  Layout::Spec gradients;  // how reduced gradients are handed in
  Layout::Spec weights;    // how new weights are handed out
  Placement placement = Placement::owner;
  HandIn hand_in = HandIn::reduced;
  // Of a world with axes, where gradients and weights may leave their mesh out: cut over all ranks.
  std::vector<Axis> axes = {};
  std::vector<AxisPartition> parts = {};
};

// What travels between ranks: a range of a parameter.
struct Transit {
  std::uint32_t param = 0;
  FlatRange range;
};

// A parameter's. REQUIRES: it has that optimizer.
inline const MuonSpec& muon_spec(const ModelSpec& model, std::uint32_t param) {
  return std::get<MuonSpec>(model.groups[model.params[param].group]);
}
inline const AdamSpec& adam_spec(const ModelSpec& model, std::uint32_t param) {
  return std::get<AdamSpec>(model.groups[model.params[param].group]);
}

inline bool is_muon(const ModelSpec& model, std::uint32_t param) {
  return std::holds_alternative<MuonSpec>(model.groups[model.params[param].group]);
}

// What a step hands out of a parameter: of AdamW's always weights.
inline Out out_of(const ModelSpec& model, std::uint32_t param) {
  return is_muon(model, param) ? muon_spec(model, param).out : Out::weights;
}

}  // namespace ebb::libmuon
