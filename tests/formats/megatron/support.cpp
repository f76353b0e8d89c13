#include "tests/formats/megatron/support.h"

#include <simdjson.h>

#include <algorithm>

#include "ebb/formats/core/json_text.h"
#include "ebb/formats/describe.h"
#include "ebb/formats/megatron/names.h"
#include "tests/support/source_tree.h"

namespace ebb::megatron_test {
namespace {

namespace fs = std::filesystem;
using simdjson::dom::element;

std::string list_of(const std::vector<Value>& items);

// expected.json's spelling: tuples are lists, keys are text, tensors and namespaces are tagged.
std::string plain(const Value& value) {
  if (value.kind == Value::Kind::dict) {
    std::string out = "{";
    for (const auto& [key, item] : value.entries) {
      if (out.size() > 1) out += ',';
      const bool text = key.kind == Value::Kind::string;
      out += json_string(text ? key.text : to_json(key)) + ':' + plain(item);
    }
    return out + "}";
  }
  if (value.kind == Value::Kind::list || value.kind == Value::Kind::tuple)
    return list_of(value.items);
  if (value.kind == Value::Kind::tensor)
    return "{\"__tensor__\":" + json_string(name_of(value.dtype)) +
           ",\"shape\":" + list_of(value.items) + ",\"sha256\":" + json_string(value.text) + "}";
  if (value.kind == Value::Kind::object && value.text == "argparse.Namespace")
    return "{\"__namespace__\":" + plain(value.items.at(1)) + "}";
  return to_json(value);
}

std::string list_of(const std::vector<Value>& items) {
  std::string out = "[";
  for (const Value& item : items) {
    if (out.size() > 1) out += ',';
    out += plain(item);
  }
  return out + "]";
}

// One spelling of numbers and spaces for both sides.
std::string compact(const std::string& json) {
  simdjson::dom::parser parser;
  element root;
  return parser.parse(json).get(root) == simdjson::SUCCESS ? simdjson::minify(root)
                                                           : "not JSON: " + json;
}

std::string common_of(const Catalog& catalog) {
  Value common;
  common.kind = Value::Kind::dict;
  for (const ValueEntry& entry : catalog.values)
    if (entry.path.size() == 2 && entry.path[0] == formats::PathItem("common"))
      common.entries.emplace_back(Value::of_string(entry.key), entry.value);
  return compact(plain(common));
}

const Value* value_named(const Catalog& catalog, std::string_view key) {
  for (const ValueEntry& entry : catalog.values)
    if (entry.key == key) return &entry.value;
  return nullptr;
}

}  // namespace

fs::path case_folder(const std::string& name) { return fs::path(EBB_FIXTURES) / "megatron" / name; }

std::vector<std::string> cases(std::string_view prefix) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(fs::path(EBB_FIXTURES) / "megatron")) {
    const std::string name = entry.path().filename();
    if (entry.is_directory() && !name.starts_with("bad_") && name.starts_with(prefix))
      names.push_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

Result<std::unique_ptr<Checkpoint>> describe_case(const std::string& name) {
  return formats::describe(test_support::load_tree(case_folder(name) / "data"));
}

std::string value_differences(const Catalog& catalog, const fs::path& expected_json) {
  simdjson::dom::parser parser;
  element root;
  if (parser.load(expected_json.string()).get(root) != simdjson::SUCCESS)
    return "cannot read " + expected_json.string();
  std::string out;
  const auto check = [&](const char* key, const std::string& found) {
    element wanted;
    if (root["values"][key].get(wanted) != simdjson::SUCCESS) return;
    if (simdjson::minify(wanted) != found)
      out += std::string(key) + ": " + found + ", expected " + simdjson::minify(wanted) + "\n";
  };
  for (const char* key : {"iteration", "folder", "checkpoint_version"})
    if (const Value* value = value_named(catalog, key)) check(key, compact(to_json(*value)));
  check("common", common_of(catalog));
  std::vector<std::string> objects;
  for (const ValueEntry& entry : catalog.values)
    if (formats::megatron::is_object_key(entry.key)) objects.push_back(entry.key);
  std::sort(objects.begin(), objects.end());
  std::vector<Value> texts;
  for (const std::string& object : objects) texts.push_back(Value::of_string(object));
  check("objects", compact(list_of(texts)));
  return out;
}

}  // namespace ebb::megatron_test
