// Values as JSON text and back, without loss: as to_json() of formats/catalog/value.h has them, but
// with the bytes of tensors and the attributes of objects. And the three documents that a file of
// ours carries.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "ebb/formats/catalog/catalog.h"

namespace ebb::formats {

constexpr std::uint64_t kMaxJson = 256ull << 20;  // bytes of one document

// True for the keys that mark a tensor or an object in our JSON: a dict of a checkpoint that has
// one would come back as something else.
bool is_value_mark(std::string_view key);

std::string value_json(const Value& value);
// [[key, [path item, ...], value], ...]
std::string values_json(const std::vector<ValueEntry>& values);
// [{"optimizer": "muon", "settings": [[name, value], ...], "params": [name, ...]}, ...]
std::string groups_json(const std::vector<GroupEntry>& groups);
// {parameter: steps, ...}
std::string param_steps_json(const std::map<std::string, std::int64_t>& steps);
// The most bytes of it that one parameter takes, whatever its count.
std::size_t param_step_bytes(std::string_view name);

// `where` begins messages: "state.h5: attribute 'ebb.values'".
Result<Value> read_value_json(std::string_view json, const std::string& where);
Result<std::vector<ValueEntry>> read_values_json(std::string_view json, const std::string& where);
Result<std::vector<GroupEntry>> read_groups_json(std::string_view json, const std::string& where);
Result<std::map<std::string, std::int64_t>> read_param_steps_json(std::string_view json,
                                                                  const std::string& where);

}  // namespace ebb::formats
