// Which parameters of a model an optimizer's numbers are, where nothing records it. A name is given
// only where one assignment is possible. Internal to formats/state_dict.
#pragma once

#include <cstdint>
#include <map>
#include <string_view>
#include <vector>

#include "ebb/formats/catalog/catalog.h"

namespace ebb::formats {

struct ModelParam {
  std::string_view name;
  const Shape* shape = nullptr;
};

// Whether the order of a model's tensors is that of its parameters: torch.save keeps it, DCP lists
// what each rank has saved one after the other, safetensors sorts.
enum class ModelOrder : std::uint8_t { of_the_model, unknown };

// The states of a parameter of an optimizer, by name.
using StateShapes = std::map<std::string_view, const Shape*>;

// The shapes of a group's parameters, each nullptr where no state tells. A state has its
// parameter's shape where all parameters of the group that are alike have it and in all of them it
// is a shape of the model; of several the shape that most of those states agree on. Where two are
// the factors of one shape alone, as Adafactor has them, it is that. Others, such as SOAP's, do not
// matter.
std::vector<const Shape*> shapes_of_params(const std::vector<const StateShapes*>& group,
                                           const std::vector<ModelParam>& model);

struct InferredNames {
  std::vector<std::string_view> names;  // of a group's parameters; none, or "": stay numbers
  NamedBy by = NamedBy::recorded;
};

// For each group of all optimizers of one model, all that have a shape or nothing. By shapes: each
// parameter is the only one of its shape, in the model as among the numbers. By order: the group's
// shapes are those of the model's parameters in one way only that keeps the order. None where the
// numbers of a shape are more than the model has, because then states have not the shapes of their
// parameters. What has no shape (a frozen parameter has no state) stays a number.
std::vector<InferredNames> infer_names(const std::vector<ModelParam>& model,
                                       const std::vector<std::vector<const Shape*>>& groups,
                                       ModelOrder order);

}  // namespace ebb::formats
