#include "ebb/formats/megatron/names.h"

#include <algorithm>
#include <optional>

#include "ebb/formats/core/number_text.h"

namespace ebb::formats::megatron {
namespace {

constexpr std::string_view kStates = "optimizer.state.";
constexpr std::string_view kChained = "chained_";

std::string state_of(std::string_view stored) {
  return std::string(stored == "param" || stored == "fp32_param" ? "master" : stored);
}

std::optional<Key> optimizer_key(std::string_view key) {
  const std::uint32_t optimizer = take_chained(key).value_or(0);
  if (!key.starts_with(kStates)) return std::nullopt;
  key.remove_prefix(kStates.size());
  const std::size_t dot = key.find('.');
  if (dot == 0 || dot == std::string_view::npos || dot + 1 == key.size()) return std::nullopt;
  return Key{std::string(key.substr(dot + 1)), state_of(key.substr(0, dot)), optimizer};
}

// Takes the numbers with dots between them off the front, `most` at most, of at most 9 digits each;
// empty: there are none.
std::vector<std::uint64_t> take_numbers(std::string_view& text, std::size_t most) {
  constexpr std::size_t kMaxDigits = 9;
  constexpr std::string_view kDigits = "0123456789";
  std::vector<std::uint64_t> numbers;
  for (;;) {
    const std::size_t stop = std::min(text.find_first_not_of(kDigits), text.size());
    if (stop == 0 || stop > kMaxDigits) return {};
    numbers.push_back(*parse_number<std::uint64_t>(text.substr(0, stop)));
    text.remove_prefix(stop);
    // A dot that no digit follows is the text's.
    const bool goes_on =
        text.size() > 1 && text[0] == '.' && kDigits.find(text[1]) != std::string_view::npos;
    if (!goes_on || numbers.size() == most) return numbers;
    text.remove_prefix(1);
  }
}

// The `<key>/shard_<offsets>_<shape>` that the text begins with, and what is behind it.
// Megatron-core splits it at its '/', of which there may be one.
struct ObjectKeyFound {
  ObjectKey key;
  std::string_view rest;
};

std::optional<ObjectKeyFound> object_key_at_front(std::string_view text) {
  constexpr std::string_view kShard = "/shard_";
  constexpr std::size_t kMaxAxes = 64;
  const std::size_t at = text.find('/');
  if (at == std::string_view::npos || text.substr(at, kShard.size()) != kShard) return std::nullopt;
  ObjectKey key{std::string(text.substr(0, at)), {}, {}};
  text.remove_prefix(at + kShard.size());
  key.offsets = take_numbers(text, kMaxAxes);
  if (key.offsets.empty() || !text.starts_with('_')) return std::nullopt;
  text.remove_prefix(1);
  key.shape = take_numbers(text, key.offsets.size());
  // Old ones lack the last number of the shape.
  if (key.shape.empty() || key.offsets.size() - key.shape.size() > 1) return std::nullopt;
  return ObjectKeyFound{std::move(key), text};
}

}  // namespace

Key parsed_key(std::string_view key) {
  if (auto found = optimizer_key(key)) return std::move(*found);
  if (const std::size_t dot = key.rfind('.');
      dot != std::string_view::npos && is_bucket_name(key.substr(0, dot)))
    return {std::string(key.substr(0, dot)), state_of(key.substr(dot + 1)), 0};
  return {std::string(key), "param", 0};
}

bool is_optimizer_key(std::string_view key) { return optimizer_key(key).has_value(); }

std::optional<std::uint32_t> take_chained(std::string_view& key) {
  const std::size_t dot = key.find('.');
  if (!key.starts_with(kChained) || dot == std::string_view::npos) return std::nullopt;
  const auto number =
      parse_number<std::uint32_t>(key.substr(kChained.size(), dot - kChained.size()));
  if (number) key.remove_prefix(dot + 1);
  return number;
}

bool is_bucket_name(std::string_view name) {
  constexpr std::string_view kBucket = ".bucket_idx_";
  const std::size_t at = name.rfind(kBucket);
  if (at == std::string_view::npos) return false;
  const std::string_view digits = name.substr(at + kBucket.size());
  return !digits.empty() && digits.find_first_not_of("0123456789") == std::string_view::npos &&
         name.find("dp_group_idx_") < at && name.find(".gbuf_idx_") < at;
}

std::optional<ObjectKey> object_key(std::string_view key) {
  auto found = object_key_at_front(key);
  return found && found->rest.empty() ? std::optional(std::move(found->key)) : std::nullopt;
}

bool is_object_part(std::string_view key) {
  const auto found = object_key_at_front(key);
  return found && !found->rest.empty();
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
