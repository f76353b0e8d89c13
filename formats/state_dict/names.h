// What the contents of a torch state dict mean: which parameter and which state a tensor is, the
// optimizers' groups, the step.
#pragma once

#include <memory>
#include <set>
#include <string_view>
#include <vector>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/core/result.h"
#include "ebb/formats/state_dict/parts.h"

namespace ebb::formats {

// Gives the tensors of a described state dict names and states: below a model (name, "param"), of
// an optimizer (name, its state), anything else (key, "tensor"). Sets groups, step, parts and the
// echoes among the values, and notes what is not clear. An optimizer's numbers become names by its
// param_names, by those that are said or, where one assignment is possible, by shapes or the order
// of the model (infer.h); else they stay "<optimizer>.<number>", a parameter that no model has.
// `in_tensors`: settings and steps that are tensors (small_tensors.h).
// Code::usage when nothing lies where a part is said to be, or said names do not fit.
Result<> name_contents(Catalog& catalog, const PartsSaid& said = {},
                       std::vector<ValueEntry> in_tensors = {});

// What is to be converted of `source`, under the names that it will have. Code::unsupported where
// a tensor would become a parameter only because nothing says what it is, in a described state
// dict; the hint says which flags would.
Result<> check_understood(const Catalog& source, const Catalog& content);
// The same where a state would be that of a parameter which nobody knows.
Result<> check_named(const Catalog& source, const Catalog& content);

// What a module keeps of its own in a state dict (torch.nn.Module.get_extra_state,
// TransformerEngine its scales): no parameter, whatever it is.
inline constexpr std::string_view kExtraState = "_extra_state";
bool is_extra_state(std::string_view name);

// What optimizers call parameters by numbers that became no names.
std::set<std::string_view> mere_numbers(const Catalog& source);

// Whether parameters are numbers in an optimizer of the state dict, whatever names were inferred.
bool has_numbers(const Catalog& source);

// `stored` with the tensors that have keys of `model` named as they are there.
std::unique_ptr<Checkpoint> named_like(std::unique_ptr<Checkpoint> stored, const Catalog& model);

}  // namespace ebb::formats
