#include "tests/support/expected.h"

#include <openssl/evp.h>
#include <simdjson.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <set>

#include "ebb/formats/core/units.h"

namespace ebb::test_support {
namespace {

using simdjson::dom::element;
using simdjson::dom::element_type;

std::string hex_sha256(ByteView bytes) {
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest{};
  unsigned int length = 0;
  EBB_CHECK(EVP_Digest(bytes.data(), bytes.size(), digest.data(), &length, EVP_sha256(), nullptr) ==
            1);
  constexpr std::string_view kHex = "0123456789abcdef";
  std::string out;
  for (unsigned int i = 0; i < length; ++i) {
    out += kHex[digest[i] >> 4];
    out += kHex[digest[i] & 15];
  }
  return out;
}

bool same(element a, element b);

bool same_objects(simdjson::dom::object a, simdjson::dom::object b) {
  if (a.size() != b.size()) return false;
  for (const auto& field : a) {
    element other;
    if (b.at_key(field.key).get(other) != simdjson::SUCCESS || !same(field.value, other))
      return false;
  }
  return true;
}

bool same(element a, element b) {
  double x = 0, y = 0;
  if (a.get(x) == simdjson::SUCCESS && b.get(y) == simdjson::SUCCESS) return x == y;
  if (a.type() != b.type()) return false;
  if (a.type() == element_type::OBJECT) return same_objects(a.get_object(), b.get_object());
  if (a.type() != element_type::ARRAY) return simdjson::minify(a) == simdjson::minify(b);
  simdjson::dom::array left = a.get_array(), right = b.get_array();
  if (left.size() != right.size()) return false;
  auto other = right.begin();
  for (const element item : left) {
    if (!same(item, *other)) return false;
    ++other;
  }
  return true;
}

std::string shape_text(element shape) { return simdjson::minify(shape); }
std::string shape_text(const Shape& shape) {
  std::string out = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    if (i != 0) out += ",";
    out += std::to_string(shape[i]);
  }
  return out + "]";
}

std::string text_or_empty(element object, std::string_view key) {
  std::string_view text;
  return object[key].get(text) == simdjson::SUCCESS ? std::string(text) : std::string();
}

// What identifies a tensor: its key where it has one, else (name, state).
std::string identity(const TensorEntry& tensor) {
  return tensor.key ? "key " + *tensor.key : "name " + tensor.name + "|" + tensor.state;
}
std::string identity(element tensor) {
  return tensor["key"].is_null()
             ? "name " + text_or_empty(tensor, "name") + "|" + text_or_empty(tensor, "state")
             : "key " + text_or_empty(tensor, "key");
}

// Whether the case insists on names where keys identify already.
enum class Names : std::uint8_t { by_key, told };

Names names_of(element root) {
  bool must_name = false;
  const bool told = root["must_name"].get(must_name) == simdjson::SUCCESS && must_name;
  return told ? Names::told : Names::by_key;
}

// A name that is the key says that the key's words are of no convention: what lies there may tell
// more.
bool is_name_due(Names names, element expected) {
  return names == Names::told || expected["key"].is_null() ||
         text_or_empty(expected, "name") != text_or_empty(expected, "key");
}

std::string compare_tensor(const Checkpoint& checkpoint, const TensorEntry& tensor,
                           element expected, Names names) {
  std::string out;
  const auto check = [&](std::string_view what, const std::string& have, const std::string& want) {
    if (have != want)
      out +=
          identity(tensor) + ": " + std::string(what) + " is " + have + ", expected " + want + "\n";
  };
  if (is_name_due(names, expected)) {
    check("name", tensor.name, text_or_empty(expected, "name"));
    check("state", tensor.state, text_or_empty(expected, "state"));
  }
  check("dtype", std::string(name_of(tensor.dtype)), text_or_empty(expected, "dtype"));
  check("shape", shape_text(tensor.shape), shape_text(element(expected["shape"])));
  const auto digest = sha256_of(checkpoint, tensor);
  check("sha256", digest ? *digest : digest.error().message, text_or_empty(expected, "sha256"));
  return out;
}

std::string compare_tensors(const Checkpoint& checkpoint, element root) {
  std::string out;
  std::set<std::string> found;
  for (const element expected : root["tensors"].get_array()) {
    const TensorEntry* match = nullptr;
    for (const TensorEntry& tensor : checkpoint.catalog().tensors)
      if (identity(tensor) == identity(expected)) match = &tensor;
    element derived;
    if (match == nullptr && expected["derived"].get(derived) == simdjson::SUCCESS) continue;
    if (match == nullptr) {
      out += identity(expected) + ": missing\n";
      continue;
    }
    found.insert(identity(*match));
    out += compare_tensor(checkpoint, *match, expected, names_of(root));
  }
  for (const TensorEntry& tensor : checkpoint.catalog().tensors)
    if (!found.contains(identity(tensor))) out += identity(tensor) + ": not expected\n";
  return out;
}

// One expected value against the catalog's, "" when they agree.
std::string compare_value(const Catalog& catalog, std::string_view key, element expected) {
  const ValueEntry* match = nullptr;
  for (const ValueEntry& value : catalog.values)
    if (value.key == key) match = &value;
  const std::string have = match == nullptr ? "missing" : to_json(match->value);
  simdjson::dom::parser parser;
  element parsed;
  if (match != nullptr && parser.parse(have).get(parsed) == simdjson::SUCCESS &&
      same(parsed, expected))
    return {};
  return "value " + std::string(key) + ": " + have + ", expected " + simdjson::minify(expected) +
         "\n";
}

std::string compare_values(const Catalog& catalog, element root) {
  std::string out;
  simdjson::dom::object expected = root["values"].get_object();
  for (const auto& field : expected) out += compare_value(catalog, field.key, field.value);
  for (const ValueEntry& value : catalog.values) {
    element ignored;
    if (expected.at_key(value.key).get(ignored) != simdjson::SUCCESS)
      out += "value " + value.key + ": not expected\n";
  }
  return out;
}

}  // namespace

Result<std::string> sha256_of(const Checkpoint& checkpoint, const TensorEntry& tensor) {
  const std::uint32_t bytes_per_elem = formats::bytes_of(tensor.dtype);
  const Box all = formats::whole(tensor.shape);
  ByteVector whole(formats::volume(tensor.shape) * bytes_per_elem);
  for (const Chunk& chunk : tensor.chunks) {
    ByteVector part(formats::volume(chunk.box.extent) * bytes_per_elem);
    EBB_TRY(checkpoint.read(tensor, chunk, 0, part));
    formats::copy_region(chunk.box, {chunk.box, part}, {all, whole}, bytes_per_elem);
  }
  return hex_sha256(whole);
}

std::string differences(const Checkpoint& checkpoint, const std::filesystem::path& expected_json,
                        Compare compare) {
  simdjson::dom::parser parser;
  element root;
  if (parser.load(expected_json.string()).get(root) != simdjson::SUCCESS)
    return "cannot read " + expected_json.string();
  std::string out = compare_tensors(checkpoint, root);
  if (compare == Compare::tensors_and_values) out += compare_values(checkpoint.catalog(), root);
  return out;
}

std::string value_differences(const Catalog& catalog, const std::filesystem::path& expected_json,
                              std::span<const std::string_view> but_not) {
  simdjson::dom::parser parser;
  element root;
  if (parser.load(expected_json.string()).get(root) != simdjson::SUCCESS)
    return "cannot read " + expected_json.string();
  std::string out;
  for (const auto& field : simdjson::dom::object(root["values"].get_object()))
    if (std::find(but_not.begin(), but_not.end(), field.key) == but_not.end())
      out += compare_value(catalog, field.key, field.value);
  return out;
}

std::string content_differences(const std::string& json, const std::filesystem::path& expected_json,
                                Compare compare) {
  simdjson::dom::parser expected_parser, parser;
  element expected, found;
  if (expected_parser.load(expected_json.string()).get(expected) != simdjson::SUCCESS)
    return "cannot read " + expected_json.string();
  if (parser.parse(json).get(found) != simdjson::SUCCESS) return "not JSON: " + json;
  std::map<std::string, element> tensors;
  for (const element tensor : found["tensors"].get_array()) tensors[identity(tensor)] = tensor;
  std::string out;
  for (const element tensor : expected["tensors"].get_array()) {
    const auto match = tensors.find(identity(tensor));
    element ignored;
    const bool derived = tensor["derived"].get(ignored) == simdjson::SUCCESS;
    if (match == tensors.end() && derived) continue;
    const bool named = is_name_due(names_of(expected), tensor);
    bool equal = match != tensors.end();
    for (const char* field : {"dtype", "shape", "sha256"})
      equal = equal && same(match->second[field], tensor[field]);
    for (const char* field : {"name", "state"})
      equal = equal && (!named || same(match->second[field], tensor[field]));
    if (!equal) out += identity(tensor) + ": missing or different\n";
    tensors.erase(identity(tensor));
  }
  for (const auto& [name, tensor] : tensors) out += name + ": not expected\n";
  if (compare == Compare::tensors_and_values && !same(found["values"], expected["values"]))
    out += "values differ\n";
  return out;
}

std::string expected_error(const std::filesystem::path& expected_json) {
  simdjson::dom::parser parser;
  element root;
  if (parser.load(expected_json.string()).get(root) != simdjson::SUCCESS) return {};
  return text_or_empty(root, "error");
}

}  // namespace ebb::test_support
