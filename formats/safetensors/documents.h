// What keys say, and the JSON texts in __metadata__. Under keys of ours what is no tensor and no
// plain text: the step, parameter groups, steps counted outside tensors, every other value. Under
// torch's where each box lies in its tensor. docs/formats/safetensors.md.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ebb/formats/catalog/catalog.h"
#include "ebb/formats/safetensors/header.h"

namespace ebb::formats::safetensors {

// A file of ours says so in __metadata__, and whether its "format" is ours or came with the
// content.
constexpr std::string_view kMarkerKey = "ebb";
constexpr std::string_view kIdentityKey =
    "ebb.identity";                                // {key: {"name", "state"}}, see IdentityMap
constexpr std::string_view kStepKey = "ebb.step";  // and three documents
constexpr std::string_view kGroupsKey = "ebb.groups";
constexpr std::string_view kParamStepsKey = "ebb.param_steps";
constexpr std::string_view kValuesKey = "ebb.values";
constexpr std::string_view kFormatAdded = "1 added:format";
constexpr std::string_view kNothingAdded = "1 added:";

struct NamedState {
  std::string name;
  std::string state;
};

// Tensors whose name and state their key does not tell.
using IdentityMap = std::unordered_map<std::string, NamedState>;

// "<anything>.state.<name>.<state>" and "opt[im[izer]].<name>.<state>" are optimizer state, every
// other key is a parameter of that name.
NamedState named_state_of(std::string_view key);

// Params, and tensors of no known convention, are called by their name, other states by their key.
std::string key_of(const TensorEntry& tensor);

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

struct ReadDocuments {
  std::optional<std::int64_t> step;
  std::vector<GroupEntry> groups;
  std::map<std::string, std::int64_t> param_steps;
  std::vector<ValueEntry> values;
};
// Of a file of ours. Fails with Code::corrupt or limit; messages hold file:offset and the key.
Result<ReadDocuments> read_documents(const std::string& file, const Header& header);

// DCP_SHARDING_INFO, of torch DCP's HuggingFaceStorageWriter.
struct SavedShard {
  Shape offsets;                           // of the stored box in the whole tensor
  std::optional<std::string> logical_fqn;  // where several boxes of one tensor lie in one file
};
using ShardingInfo = std::unordered_map<std::string, SavedShard>;

// `file` is for messages.
Result<ShardingInfo> read_sharding_info(const std::string& file, std::string_view json);

// Our own note about tensors whose key does not tell their name and state.
Result<IdentityMap> read_identity(const std::string& file, std::string_view json);

}  // namespace ebb::formats::safetensors
