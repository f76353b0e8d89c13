#include "ebb/libmuon/plan/model_layout.h"

#include <utility>

namespace ebb::libmuon {

Result<ModelLayout> ModelLayout::make(std::span<const ParamClass> classes,
                                      Layout::Spec ParamClass::* side) {
  ModelLayout all;
  std::size_t params = 0;
  for (const ParamClass& one : classes) params += one.params.size();
  all.places_.resize(params);
  for (const ParamClass& one : classes) {
    const auto number = static_cast<std::uint32_t>(all.layouts_.size());
    for (std::uint32_t tensor = 0; tensor < one.params.size(); ++tensor)
      all.places_[one.params[tensor]] = {number, tensor};
    auto layout = Layout::sharing(one.*side, one.shapes);
    if (!layout) {
      Error error = std::move(layout).error();
      if (!one.name.empty()) error.message = one.name + ": " + error.message;
      return error;
    }
    all.layouts_.push_back(*std::move(layout));
    all.partitions_.push_back(one.partition);
  }
  return all;
}

ModelLayout::ModelLayout(Layout layout) : partitions_(1, 0), places_(layout.tensors().size()) {
  for (std::uint32_t param = 0; param < places_.size(); ++param) places_[param].tensor = param;
  layouts_.push_back(std::move(layout));
}

}  // namespace ebb::libmuon
