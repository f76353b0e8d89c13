// What is written as Megatron and read again, and how tests look at it.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "ebb/formats/catalog/emit.h"
#include "ebb/formats/registry.h"

namespace ebb::megatron_test {

struct Written {
  EmitPlan plan;
  std::shared_ptr<const formats::SourceTree> tree;
  std::unique_ptr<Checkpoint> checkpoint;
};

// Converts, carries the plan out in memory and describes the result; an error where that is of
// another format or has holes. Without a policy: the format's own.
Result<Written> written_as(const Checkpoint& source, std::string_view format,
                           std::uint32_t world = 3, std::optional<Policy> policy = std::nullopt);

// "name state" -> "dtype [shape] sha256"
using Content = std::map<std::string, std::string>;
Content content_of(const Checkpoint& checkpoint);

// Key -> JSON, but for the folder's name.
std::map<std::string, std::string> values_of(const Catalog& catalog);

// nullptr: not there.
const TensorEntry* find(const Catalog& catalog, std::string_view name, std::string_view state);

}  // namespace ebb::megatron_test
