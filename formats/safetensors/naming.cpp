#include "ebb/formats/safetensors/naming.h"

#include <array>
#include <optional>

namespace ebb::formats::safetensors {
namespace {

std::optional<NamedState> split_last(std::string_view text) {
  const std::size_t dot = text.rfind('.');
  if (dot == std::string_view::npos || dot == 0 || dot + 1 == text.size()) return std::nullopt;
  return NamedState{std::string(text.substr(0, dot)), std::string(text.substr(dot + 1))};
}

}  // namespace

NamedState named_state_of(std::string_view key) {
  constexpr std::string_view kState = ".state.";
  if (const std::size_t at = key.find(kState); at != std::string_view::npos)
    if (auto named = split_last(key.substr(at + kState.size()))) return *named;
  constexpr std::array<std::string_view, 4> kPrefixes = {"optimizer.", "optim.", "opt.", "state."};
  for (const std::string_view prefix : kPrefixes)
    if (key.starts_with(prefix))
      if (auto named = split_last(key.substr(prefix.size()))) return *named;
  return {std::string(key), "param"};
}

std::string key_of(const TensorEntry& tensor) {
  if (tensor.state == "param" || tensor.state == "tensor") return tensor.name;
  if (tensor.key) return *tensor.key;
  return compose("optimizer.state.{}.{}", tensor.name, tensor.state);
}

}  // namespace ebb::formats::safetensors
