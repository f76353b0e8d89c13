#include "ebb/formats/conversion/block_states.h"

#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "ebb/formats/core/json_text.h"

namespace ebb::formats {
namespace {

constexpr std::string_view kCodes = "state";
constexpr std::string_view kScales = "absmax";

// Of "state1" "1", behind whatever the state lies in; "": it is none.
std::string_view number_of(std::string_view state) {
  std::string_view word = state.substr(state.rfind('.') + 1);
  if (!word.starts_with(kCodes)) return {};
  word.remove_prefix(kCodes.size());
  return word.find_first_not_of("0123456789") == word.npos ? word : std::string_view();
}

}  // namespace

Result<> check_block_states(const Format& to, const Catalog& content) {
  if (to.traits().block_states == BlockStates::taken) return {};
  std::set<std::pair<std::string_view, std::string_view>> all;
  for (const TensorEntry& tensor : content.tensors) all.emplace(tensor.name, tensor.state);
  for (const TensorEntry& tensor : content.tensors) {
    const std::string_view state = tensor.state;
    const std::string_view number = number_of(state);
    if (number.empty() || tensor.dtype != DType::u8) continue;
    const std::string_view before = state.substr(0, state.rfind('.') + 1);
    if (!all.contains({tensor.name, compose("{}{}{}", before, kScales, number)})) continue;
    return Error{Code::unsupported,
                 compose("tensor '{}' ({}) is a state in 8 bits of bitsandbytes, with qmap{} and "
                         "absmax{}: a job that resumes from {} knows no such state",
                         printable(tensor.name), printable(state), number, number, to.name()),
                 "--to dcp, torch and transformers keep it; --states param converts the weights "
                 "alone"};
  }
  return {};
}

}  // namespace ebb::formats
