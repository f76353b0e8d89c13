#include "ebb/libmuon/plan/bound_masters.h"

#include <string>
#include <string_view>

namespace ebb::libmuon {

Result<> check_bound_masters(const ModelSpec& model, const Columns& columns) {
  if (!columns.bound_masters()) return {};
  const bool halves = columns.in_halves();
  const DType wanted = halves ? DType::bf16 : DType::f32;
  for (std::uint32_t i = 0; i < model.params.size(); ++i) {
    const std::string what = compose(
        "parameter {}: its master as {},", model.params[i].name,
        halves ? "U16, the low half of fp32" : "none, the trainer's weights being the masters");
    if (model.params[i].weight != wanted)
      return Error{Code::unsupported,
                   compose("{} wants {}weights of {}, and they are {}", what,
                           halves ? "the other half in " : "", name_of(wanted),
                           name_of(model.params[i].weight)),
                   compose("keep master in F32, or bind weights in {}", name_of(wanted))};
    std::string_view other;
    if (out_of(model, i) == Out::update) other = "out = update, which binds updates";
    if (is_muon(model, i) && muon_spec(model, i).decay == Decay::l2)
      other = "decay = l2, which reads it before its momentum";
    if (!other.empty())
      return Error{Code::unsupported, compose("{} and {}", what, other), "keep master in F32"};
  }
  return {};
}

}  // namespace ebb::libmuon
