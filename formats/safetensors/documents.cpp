#include "ebb/formats/safetensors/documents.h"

#include <algorithm>
#include <array>
#include <set>

#include "ebb/formats/catalog/value_json.h"
#include "ebb/formats/core/json_text.h"
#include "ebb/formats/core/number_text.h"
#include "ebb/formats/core/units.h"
#include "ebb/formats/json/json_reader.h"

namespace ebb::formats::safetensors {
namespace {

using Kind = Value::Kind;

constexpr std::array kOurKeys = {kMarkerKey, kIdentityKey,   kStepKey,
                                 kGroupsKey, kParamStepsKey, kValuesKey};

bool is_utf8(std::string_view text) {
  while (!text.empty()) {
    const std::size_t length = utf8_length(text);
    if (length == 0) return false;
    text.remove_prefix(length);
  }
  return true;
}

constexpr std::string_view kNoText = "it has text that is not UTF-8";
constexpr std::string_view kTooBig = "it does not fit the header, which has 100 MB at most";

std::string_view why_no_tensor(const Value& tensor) {
  std::optional<std::uint64_t> bits = bits_of(tensor.dtype);
  for (const Value& extent : tensor.items)
    bits = bits ? checked_mul(*bits, static_cast<std::uint64_t>(extent.integer)) : std::nullopt;
  if (bits != std::uint64_t{tensor.raw.size()} * 8)
    return "it has a tensor that is known by its digest only";
  return {};
}

// Why the JSON of a value would come back as another one, where comparing the two texts does not
// tell; "" when nothing is known against it.
std::string_view why_not_text(const Value& value) {
  if (!is_utf8(value.text)) return kNoText;
  if (value.kind == Kind::tensor) return why_no_tensor(value);
  for (const Value& item : value.items)
    if (const auto why = why_not_text(item); !why.empty()) return why;
  for (const auto& [key, item] : value.entries) {
    if (const auto why = why_not_text(key); !why.empty()) return why;
    if (const auto why = why_not_text(item); !why.empty()) return why;
    if (key.kind == Kind::string && is_value_mark(key.text)) return "it has a key of ours";
  }
  return {};
}

// At least as many bytes are in its JSON.
std::uint64_t least_bytes(const Value& value) {
  std::uint64_t bytes = value.text.size() + 2 * std::uint64_t{value.raw.size()} + 1;
  for (const Value& item : value.items) bytes += least_bytes(item);
  for (const auto& [key, item] : value.entries) bytes += least_bytes(key) + least_bytes(item);
  return bytes;
}

std::size_t items_in(std::string_view json) {
  return static_cast<std::size_t>(
      std::ranges::count_if(json, [](char c) { return c == ',' || c == '[' || c == '{'; }));
}

// Quotes are escaped as the text stands in the header.
std::uint64_t written_bytes(std::string_view json) { return json_string(json).size(); }

// One document that grows item by item as long as there is room.
class Document {
 public:
  explicit Document(std::uint64_t room) : room_(room) {}

  std::uint64_t room() const { return room_; }

  // `list`: a list of the one item. False: there is no room for it.
  bool add(std::string_view list) {
    const std::string_view item = list.substr(1, list.size() - 2);
    const std::uint64_t bytes = written_bytes(item) + 2;
    const std::size_t items = items_in(item) + 1;
    if (bytes > room_ || items > kMostDocumentItems - items_) return false;
    room_ -= bytes;
    items_ += items;
    text_.append(text_.empty() ? "[" : ", ").append(item);
    return true;
  }
  std::string text() const { return text_.empty() ? "" : text_ + "]"; }

 private:
  std::uint64_t room_ = 0;
  std::size_t items_ = 0;
  std::string text_;
};

std::string_view add_value(Document& document, const ValueEntry& entry) {
  if (least_bytes(entry.value) > document.room()) return kTooBig;
  if (!is_utf8(entry.key)) return kNoText;
  for (const PathItem& item : entry.path)
    if (const auto* text = std::get_if<std::string>(&item); text != nullptr && !is_utf8(*text))
      return kNoText;
  if (const auto why = why_not_text(entry.value); !why.empty()) return why;
  const std::string json = values_json({entry});
  const auto back = read_values_json(json, "");
  if (!back || values_json(*back) != json) return "it would come back changed";
  return document.add(json) ? "" : kTooBig;
}

std::string_view add_group(Document& document, const GroupEntry& group) {
  if (!is_utf8(group.optimizer) || !std::ranges::all_of(group.params, is_utf8)) return kNoText;
  for (const auto& [name, value] : group.settings) {
    if (least_bytes(value) > document.room()) return kTooBig;
    if (!is_utf8(name)) return kNoText;
    if (const auto why = why_not_text(value); !why.empty()) return why;
  }
  const std::string json = groups_json({group});
  const auto back = read_groups_json(json, "");
  if (!back || groups_json(*back) != json) return "it would come back changed";
  return document.add(json) ? "" : kTooBig;
}

Error refused(Code code, const std::string& where, std::string_view why) {
  return {code, compose("{}: {}", where, why)};
}

Result<std::int64_t> read_step(const std::string& text, const std::string& where) {
  if (const auto step = parse_number<std::int64_t>(text)) return *step;
  return refused(Code::corrupt, where, "'" + printable(text, 40) + "' is no whole number");
}

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

SplitValues split(const std::vector<ValueEntry>& values) {
  SplitValues out;
  std::set<std::string_view> taken;
  for (const ValueEntry& entry : values) {
    const bool placed = !entry.path.empty() && entry.path != std::vector<PathItem>{entry.key};
    const bool plain = entry.value.kind == Kind::string && !placed &&
                       !entry.key.starts_with(kMarkerKey) && !entry.key.starts_with("DCP_") &&
                       is_utf8(entry.key) && is_utf8(entry.value.text) &&
                       taken.insert(entry.key).second;
    (plain ? out.plain : out.others).push_back(&entry);
  }
  return out;
}

Documents documents_of(const Catalog& content, const SplitValues& values, std::uint64_t room) {
  constexpr std::uint64_t kKeys = 256;  // all our keys, quotes, commas and the step
  room -= std::min(room, kKeys);
  Documents out;
  const auto field = [&](std::string_view key, std::string_view text) {
    if (!text.empty()) out.fields += compose(",{}:{}", json_string(key), json_string(text));
  };
  const auto lost = [&](const std::string& what, std::string_view why) {
    if (!why.empty()) out.dropped.push_back(compose("{}: {}", what, why));
  };
  if (content.step) field(kStepKey, std::to_string(*content.step));
  Document groups(room);
  for (std::size_t i = 0; i < content.groups.size(); ++i)
    lost(compose("parameter group {} with {} settings", i, content.groups[i].settings.size()),
         add_group(groups, content.groups[i]));
  field(kGroupsKey, groups.text());
  room = groups.room();
  if (const auto& steps = content.param_steps; !steps.empty()) {
    const std::string json = param_steps_json(steps);
    std::string_view why;
    if (!std::ranges::all_of(steps, [](const auto& one) { return is_utf8(one.first); }))
      why = kNoText;
    else if (written_bytes(json) > room || items_in(json) > kMostDocumentItems)
      why = kTooBig;
    lost(compose("the steps of {} parameters", steps.size()), why);
    if (why.empty()) {
      field(kParamStepsKey, json);
      room -= written_bytes(json);
    }
  }
  Document others(room);
  for (const ValueEntry* entry : values.others)
    lost("value '" + printable(entry->key) + "'", add_value(others, *entry));
  field(kValuesKey, others.text());
  return out;
}

bool is_ours(const Header& header) {
  const MetadataText* marker = header.find_metadata(kMarkerKey);
  return marker != nullptr && (marker->text == kFormatAdded || marker->text == kNothingAdded);
}

bool is_of_ours(std::string_view key) { return std::ranges::find(kOurKeys, key) != kOurKeys.end(); }

Result<ShardingInfo> read_sharding_info(const std::string& file, std::string_view text) {
  json::Reader json({file + ": DCP_SHARDING_INFO", 0, "DCP_SHARDING_INFO"}, text);
  ShardingInfo info;
  EBB_TRY(json.read([&](std::string_view key, json::Value value) -> Result<> {
    SavedShard& shard = info[std::string(key)];
    return json.fields(value, {"", key}, [&](std::string_view name, json::Value item) -> Result<> {
      if (name == "saved_offsets")
        return json.wholes(item, {"", key, ": saved_offsets"}, shard.offsets);
      if (name == "logical_fqn") {
        EBB_TRY_ASSIGN(shard.logical_fqn, json.string(item, {"", key, ": logical_fqn"}));
      }
      return {};
    });
  }));
  return info;
}

Result<IdentityMap> read_identity(const std::string& file, std::string_view text) {
  json::Reader json({compose("{}: {}", file, kIdentityKey), 0, std::string(kIdentityKey)}, text);
  IdentityMap identity;
  EBB_TRY(json.read([&](std::string_view key, json::Value value) -> Result<> {
    NamedState& named = identity[std::string(key)];
    return json.fields(value, {"", key}, [&](std::string_view name, json::Value item) -> Result<> {
      if (name == "name") {
        EBB_TRY_ASSIGN(named.name, json.string(item, {"", key, ": name"}));
      } else if (name == "state") {
        EBB_TRY_ASSIGN(named.state, json.string(item, {"", key, ": state"}));
      }
      return {};
    });
  }));
  return identity;
}

Result<ReadDocuments> read_documents(const std::string& file, const Header& header) {
  ReadDocuments told;
  for (const auto& [key, text, offset] : header.metadata) {
    const bool step = key == kStepKey, groups = key == kGroupsKey;
    const bool param_steps = key == kParamStepsKey, values = key == kValuesKey;
    if (!step && !groups && !param_steps && !values) continue;
    const std::string where = compose("{}:{}: __metadata__: '{}'", file, offset, key);
    if (items_in(text) > kMostDocumentItems)
      return refused(Code::limit, where, compose("more than {} items", kMostDocumentItems));
    if (step) {
      EBB_TRY_ASSIGN(told.step, read_step(text, where));
    }
    if (groups) {
      EBB_TRY_ASSIGN(told.groups, read_groups_json(text, where));
    }
    if (param_steps) {
      EBB_TRY_ASSIGN(told.param_steps, read_param_steps_json(text, where));
    }
    if (values) {
      EBB_TRY_ASSIGN(told.values, read_values_json(text, where));
    }
  }
  return told;
}

}  // namespace ebb::formats::safetensors
