// The weights of a checkpoint's model, as the model's load_state_dict takes them: each parameter
// once, in its most exact copy (a master, else what the model computes with), frozen ones and
// buffers too, and tied parameters under each of their names.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "ebb/formats/catalog/format.h"
#include "ebb/formats/conversion/content_view.h"
#include "ebb/formats/conversion/wrappers.h"

namespace ebb::formats {

using Wanted = std::function<bool(const TensorEntry&)>;  // null: everything

struct Weights {
  std::vector<TensorEntry> tensors;  // by name, with state "param", without keys and chunks
  std::vector<MadeOf> made_of;
  std::vector<std::string> changes;  // what was restored and what was left behind, one line each
  ParamNames names;                  // of the source, whatever is wanted of it
};

// Code::unsupported where nothing of a model is recognised, or where it is not all of it
// (complete_model.h), Code::usage where nothing of it is wanted.
Result<Weights> weights_of(const Format& from, const Catalog& source, const Wanted& wanted);

// How many parameters and buffers of the model a selection takes no weights of, and which; "" for
// none, and where the source has no weights.
std::string left_out_parameters(const Format& from, const Catalog& source, const Wanted& wanted);

}  // namespace ebb::formats
