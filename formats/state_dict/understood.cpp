#include "ebb/formats/state_dict/understood.h"

#include <algorithm>
#include <set>
#include <string>

#include "ebb/formats/core/json_text.h"
#include "ebb/formats/state_dict/parts.h"

namespace ebb::formats {
namespace {

bool is_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

// What optimizers call parameters by numbers that became no names.
std::set<std::string_view> mere_numbers(const Catalog& source) {
  std::set<std::string_view> names;
  for (const StateDictOptimizer& optimizer : source.parts.optimizers) {
    const std::string at = text_of(optimizer.at);
    for (const std::string_view name : optimizer.params) {
      const bool below = name.starts_with(at) && name.size() > at.size();
      if (below && is_number(name.substr(at.empty() ? 0 : at.size() + 1))) names.insert(name);
    }
  }
  for (const TensorEntry& tensor : source.tensors)
    if (tensor.state == "param") names.erase(tensor.name);
  return names;
}

}  // namespace

Result<> check_understood(const Catalog& source, const Catalog& content) {
  const std::set<std::string_view> numbers = mere_numbers(source);
  for (const TensorEntry& tensor : content.tensors) {
    if (tensor.state == "tensor" && source.parts.models.empty())
      return Error{Code::unsupported,
                   "tensor '" + printable(tensor.name) +
                       "': nothing tells whether it is a parameter, because which part of this "
                       "state dict is the model is not clear",
                   "--model KEY and --optimizer KEY say which part is what; --to dcp, torch, "
                   "safetensors and hdf5 keep every tensor under its key"};
    if (tensor.state != "tensor" && numbers.contains(tensor.name))
      return Error{Code::unsupported,
                   compose("'{}' ({}): neither param_names nor shapes tell which parameter of the "
                           "model this number of the optimizer is",
                           printable(tensor.name), printable(tensor.state)),
                   "--rename '" + printable(tensor.name) +
                       "=NAME' says it; --states param converts the weights alone"};
  }
  return {};
}

}  // namespace ebb::formats
