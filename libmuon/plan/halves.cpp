#include "ebb/libmuon/plan/halves.h"

#include <string>
#include <string_view>

namespace ebb::libmuon {

Result<> check_halves(const ModelSpec& model, const Columns& columns) {
  if (!columns.in_halves()) return {};
  for (std::uint32_t i = 0; i < model.params.size(); ++i) {
    const std::string what = compose("parameter {}: its master as {}, the low half of fp32,",
                                     model.params[i].name, name_of(DType::u16));
    if (model.params[i].weight != DType::bf16)
      return Error{Code::unsupported,
                   compose("{} wants the other half in weights of BF16, and they are {}", what,
                           name_of(model.params[i].weight)),
                   "keep master in F32, or bind weights in BF16"};
    std::string_view other;
    if (out_of(model, i) == Out::update)
      other = "out = update, which leaves masters to the trainer";
    if (is_muon(model, i) && muon_spec(model, i).decay == Decay::l2)
      other = "decay = l2, which reads it whole before its momentum";
    if (!other.empty())
      return Error{Code::unsupported, compose("{} and {}", what, other), "keep master in F32"};
  }
  return {};
}

}  // namespace ebb::libmuon
