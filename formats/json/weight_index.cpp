#include "ebb/formats/json/weight_index.h"

#include <algorithm>

#include "ebb/formats/json/json_reader.h"

namespace ebb::formats {
namespace {

bool is_plain_file_name(std::string_view name) {
  return !name.empty() && name.size() <= 255 && name != "." && name != ".." &&
         std::none_of(name.begin(), name.end(), [](char c) {
           return c == '/' || c == '\\' || static_cast<unsigned char>(c) < 0x20;
         });
}

Result<> read_weights(json::Reader& json, json::Value value, WeightIndex& index) {
  return json.fields(value, "weight_map", [&](std::string_view key, json::Value item) -> Result<> {
    EBB_TRY_ASSIGN(std::string file, json.string(item, {"weight_map:", key}));
    if (!is_plain_file_name(file))
      return json.at(item, compose("weight_map: '{}' lies in '{}', which is no plain file name",
                                   printable(key), printable(file)));
    index.weights.push_back({std::string(key), std::move(file)});
    return {};
  });
}

}  // namespace

Result<WeightIndex> read_weight_index(const ByteSource& source) {
  EBB_TRY_ASSIGN(const ByteVector text, read_bytes(source, 0, source.size(), kMaxIndexBytes));
  json::Reader json({std::string(source.name()), 0, "the index"}, text_of(text));
  WeightIndex index;
  int maps = 0;
  EBB_TRY(json.read([&](std::string_view key, json::Value value) -> Result<> {
    if (key == "weight_map") {
      ++maps;
      return read_weights(json, value, index);
    }
    if (key != "metadata") return {};
    return json.fields(value, "metadata", [&](std::string_view name, json::Value item) -> Result<> {
      if (name != "total_size") {
        index.unread.emplace_back(name);
        return {};
      }
      EBB_TRY_ASSIGN(index.total_size, json.whole(item, "metadata: total_size"));
      return {};
    });
  }));
  if (maps == 0)
    return Error{Code::corrupt, compose("{}:0: the index has no weight_map", source.name())};
  return index;
}

}  // namespace ebb::formats
