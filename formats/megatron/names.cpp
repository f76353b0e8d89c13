#include "ebb/formats/megatron/names.h"

#include <algorithm>
#include <charconv>
#include <optional>

namespace ebb::formats::megatron {
namespace {

constexpr std::string_view kStates = "optimizer.state.";
constexpr std::string_view kChained = "chained_";

// Takes "<digits>." off the front.
std::optional<std::uint32_t> take_number(std::string_view& text) {
  std::uint32_t number = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  const auto digits = static_cast<std::size_t>(stop - text.data());
  if (error != std::errc{} || digits == text.size() || *stop != '.') return std::nullopt;
  text.remove_prefix(digits + 1);
  return number;
}

std::string state_of(std::string_view stored) {
  return std::string(stored == "param" || stored == "fp32_param" ? "master" : stored);
}

struct OptimizerKey {
  std::uint32_t optimizer = 0;
  std::string_view state;
  std::string_view name;
};

std::optional<OptimizerKey> optimizer_key(std::string_view key) {
  OptimizerKey found;
  found.optimizer = take_chained(key).value_or(0);
  if (!key.starts_with(kStates)) return std::nullopt;
  key.remove_prefix(kStates.size());
  const std::size_t dot = key.find('.');
  if (dot == 0 || dot == std::string_view::npos || dot + 1 == key.size()) return std::nullopt;
  found.state = key.substr(0, dot);
  found.name = key.substr(dot + 1);
  return found;
}

bool all_of_set(std::string_view text, std::string_view set) {
  return !text.empty() && text.find_first_not_of(set) == std::string_view::npos;
}

// The end of the numbers with dots between them that begin at `at`, and how many there are, `most`
// at most; of at most 9 digits each.
struct Numbers {
  std::size_t end = 0;
  std::size_t count = 0;  // 0: the text is none
};

Numbers numbers_at(std::string_view text, std::size_t at, std::size_t most) {
  constexpr std::size_t kMaxDigits = 9;
  constexpr std::string_view kDigits = "0123456789";
  Numbers found;
  for (;; ++at) {
    const std::size_t stop = std::min(text.find_first_not_of(kDigits, at), text.size());
    if (stop == at || stop - at > kMaxDigits) return {};
    found = {stop, found.count + 1};
    // A dot that no digit follows is the text's.
    const bool goes_on = stop + 1 < text.size() && text[stop] == '.' &&
                         kDigits.find(text[stop + 1]) != std::string_view::npos;
    if (!goes_on || found.count == most) return found;
    at = stop;
  }
}

// Where the `<key>/shard_<offsets>_<shape>` ends that the text begins with; 0 where there is none.
// Megatron-core splits it at its '/', of which there may be one.
std::size_t behind_object_key(std::string_view key) {
  constexpr std::string_view kShard = "/shard_";
  constexpr std::size_t kMaxAxes = 64;
  const std::size_t at = key.find('/');
  if (at == std::string_view::npos || key.substr(at, kShard.size()) != kShard) return 0;
  const Numbers offsets = numbers_at(key, at + kShard.size(), kMaxAxes);
  if (offsets.count == 0 || offsets.end == key.size() || key[offsets.end] != '_') return 0;
  const Numbers shape = numbers_at(key, offsets.end + 1, offsets.count);
  // Old ones lack the last number of the shape.
  const bool fits = offsets.count == shape.count || offsets.count == shape.count + 1;
  return shape.count != 0 && fits ? shape.end : 0;
}

}  // namespace

Key parsed_key(std::string_view key) {
  if (const auto found = optimizer_key(key))
    return {std::string(found->name), state_of(found->state), found->optimizer};
  if (const std::size_t dot = key.rfind('.');
      dot != std::string_view::npos && is_bucket_name(key.substr(0, dot)))
    return {std::string(key.substr(0, dot)), state_of(key.substr(dot + 1)), 0};
  return {std::string(key), "param", 0};
}

bool is_optimizer_key(std::string_view key) { return optimizer_key(key).has_value(); }

std::optional<std::uint32_t> take_chained(std::string_view& key) {
  std::string_view rest = key;
  if (!rest.starts_with(kChained)) return std::nullopt;
  rest.remove_prefix(kChained.size());
  const auto number = take_number(rest);
  if (number) key = rest;
  return number;
}

bool is_bucket_name(std::string_view name) {
  constexpr std::string_view kBucket = ".bucket_idx_";
  const std::size_t at = name.rfind(kBucket);
  return at != std::string_view::npos &&
         all_of_set(name.substr(at + kBucket.size()), "0123456789") &&
         name.find("dp_group_idx_") < at && name.find(".gbuf_idx_") < at;
}

bool is_object_key(std::string_view key) {
  const std::size_t end = behind_object_key(key);
  return end != 0 && end == key.size();
}

bool is_object_part(std::string_view key) {
  const std::size_t end = behind_object_key(key);
  return end != 0 && end != key.size();
}

std::size_t stacked_axes(std::string_view name) {
  constexpr std::string_view kLayers = "layers.";
  std::size_t axes = name.find(".experts.experts.") == std::string_view::npos ? 0 : 1;
  const std::size_t at = name.find(kLayers);
  if (at == std::string_view::npos || at + kLayers.size() >= name.size()) return axes;
  const char next = name[at + kLayers.size()];
  return next >= '0' && next <= '9' ? axes : axes + 1;
}

}  // namespace ebb::formats::megatron
