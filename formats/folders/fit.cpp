#include "ebb/formats/folders/fit.h"

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <tuple>

#include "ebb/formats/catalog/composite.h"
#include "ebb/formats/catalog/resume.h"
#include "ebb/formats/core/number_text.h"

namespace ebb::formats::folders {
namespace {

// What states of such a parameter may be: of its shape, or of factors of it.
bool may_be_of(const Shape& state, const std::set<Shape>& params) {
  return std::ranges::any_of(params, [&](const Shape& param) {
    return std::ranges::all_of(state, [&](std::uint64_t extent) {
      return extent == 1 || std::ranges::find(param, extent) != param.end();
    });
  });
}

}  // namespace

std::string Fit::why() const {
  if (!strangers.empty())
    return compose(
        "the states of {} ({}) have the shapes of no parameter of this model: they are "
        "another model's",
        plural(strangers.size(), "parameter"), some_of(strangers));
  return compose("the optimizer has {}, the model {}: they are of two models",
                 plural(optimized, "parameter"), params);
}

Fit fit_of(const Catalog& catalog) {
  Fit fit;
  std::set<Shape> shapes;
  std::set<std::tuple<std::uint32_t, std::uint64_t, std::uint64_t>> places;
  for (const TensorEntry& tensor : catalog.tensors) {
    if (tensor.state != "param") continue;
    shapes.insert(tensor.shape);
    bool is_new = tensor.chunks.empty();
    for (const Chunk& chunk : tensor.chunks)
      is_new |= chunk.length == 0 || places.emplace(chunk.file, chunk.offset, chunk.length).second;
    fit.params += is_new ? 1 : 0;
  }
  for (const UnreadEntry& unread : catalog.unread) fit.params += unread.state == "param" ? 1 : 0;
  std::set<std::string_view> optimized;
  for (const GroupEntry& group : catalog.groups)
    optimized.insert(group.params.begin(), group.params.end());
  fit.optimized = optimized.size();
  std::map<std::string_view, bool> fits;  // of parameters with states that tell
  for (const TensorEntry& tensor : catalog.tensors)
    if (!is_weight(tensor.state) && volume(tensor.shape) > 1)
      fits[tensor.name] |= may_be_of(shape_of_whole(tensor), shapes);
  const bool all_seen =
      std::ranges::find(catalog.unread, "param", &UnreadEntry::state) == catalog.unread.end();
  for (const auto& [name, does] : fits)
    if (!does && !shapes.empty() && all_seen) fit.strangers.emplace_back(name);
  return fit;
}

}  // namespace ebb::formats::folders
