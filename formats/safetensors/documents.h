// What is no tensor and no plain text, as JSON text under keys of ours in __metadata__: the step,
// parameter groups, steps counted outside tensors, every other value. docs/formats/safetensors.md.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/safetensors/header.h"

namespace ebb::formats::safetensors {

// A reader makes a Value of each item of a document, so small ones are bounded by number.
constexpr std::size_t kMostDocumentItems = std::size_t{1} << 21;

// The values that are entries of __metadata__ themselves, key and text; they point into `values`.
struct SplitValues {
  std::vector<const ValueEntry*> plain;
  std::vector<const ValueEntry*> others;
};
SplitValues split(const std::vector<ValueEntry>& values);

struct Documents {
  std::string fields;  // ,"ebb.step":"3",...: to be put after other fields; "" for nothing
  std::vector<std::string> dropped;  // what does not come back equal or does not fit, and why
};
// `room`: bytes that `fields` may have.
Documents documents_of(const Catalog& content, const SplitValues& values, std::uint64_t room);

// The file is of ours: what else its __metadata__ has under our keys means what we say.
bool is_ours(const Header& header);
// One of the keys that a file of ours has for itself.
bool is_of_ours(std::string_view key);

struct Told {
  std::optional<std::int64_t> step;
  std::vector<GroupEntry> groups;
  std::map<std::string, std::int64_t> param_steps;
  std::vector<ValueEntry> values;
};
// Of a file of ours. Fails with Code::corrupt or limit; messages hold file:offset and the key.
Result<Told> read_documents(const std::string& file, const Header& header);

}  // namespace ebb::formats::safetensors
